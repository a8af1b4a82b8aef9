"""One line for each exercise at the end of `pytest tests/exercises`."""
STATES = {"passed": "right", "failed": "not yet", "skipped": "-"}


def pytest_terminal_summary(terminalreporter):
    everything = [report for kind in STATES for report in terminalreporter.stats.get(kind, [])]
    reports = [report for report in everything if "test_answers.py::test_answer[" in report.nodeid]
    if not reports or len(everything) > len(reports):      # not when the whole project's tests run
        return
    terminalreporter.section("your exercises")
    for report in sorted(reports, key=lambda r: r.nodeid):
        name = report.nodeid.split("[")[1].rstrip("]")
        word = dict(report.user_properties).get("word", "")
        terminalreporter.write_line(f"{name:15} {STATES[report.outcome]:8} {word}")
