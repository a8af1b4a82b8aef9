"""Exercise 6: three runs under neutral names, and the check of who is who."""
import argparse
import json
import random
import re
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import vit

from . import ROOT, NotAttempted, Wrong, function

FOLDER = ROOT / "outputs" / "diagnose"
BREAK = {"clean": [], "interleaved": ["--break", "patch_interleave"], "shuffled": ["--break", "shuffle_pos"]}
NAMES = "ABC"
QUESTION = "Clean, interleaved, or shuffled tags? By which number do you know?"
TELLTALE = ("break_mode", "verdict")       # keys of metrics.json that say the answer
# So do the words beside the page's token view, and its walk-through; its numbers, maps and curve stay.
HIDE = '<style>section[aria-labelledby="sees-title"], #walk-open { display: none !important }</style>\n</head>'
HINTS = {
    ("clean", "interleaved"): "The probe can hardly tell these two apart. What does the answer depend on? And which "
                              "part of the picture does each map point at?",
    ("clean", "shuffled"): "These two trained alike, to the last digit of train_ce: what differs happened after "
                           "training. How much does training gain over random-init in each?",
    ("interleaved", "shuffled"): "One was broken in training and probing alike, the other in probing only. Which of "
                                 "them has the smaller edge over random-init? And whose train_ce is that of the "
                                 "third run?",
}


def key(draw):
    """{"A": "clean", ...} for this draw: nothing is written down, the draw alone decides."""
    return dict(zip(NAMES, random.Random(f"who is who in draw {draw}?").sample(list(BREAK), 3)))


def neutral(name, metrics, page):
    """(metrics, page data) without anything that says what was broken: what they measured stays."""
    metrics = {k: v for k, v in metrics.items() if k not in TELLTALE}
    return metrics, page | {"title": f"run {name}", "mode": f"run {name}", "sentence": QUESTION, "lesson": "",
                            "metrics": metrics, "sibling": None}


def make(draw, folder=FOLDER, smoke=False):
    """Make the three runs of a draw (seed 1..19, by the draw too) and write them, neutral, into folder/A, B, C."""
    seed, made = 1 + draw % 19, {}
    with tempfile.TemporaryDirectory() as hidden:
        for name, mode in key(draw).items():
            print(f"run {name} ...", flush=True)
            out = Path(hidden, name)
            flags = ["--seed", str(seed), "--out", str(out), *BREAK[mode], *["--smoke"] * smoke]
            subprocess.run([sys.executable, str(ROOT / "vit.py"), *flags], cwd=hidden, check=True,
                           stdout=subprocess.DEVNULL)
            slot = vit.SLOT.search((out / "viewer.html").read_text("utf-8"))
            made[name] = neutral(name, json.loads((out / "metrics.json").read_text("utf-8")), json.loads(slot[2]))
    for name, (metrics, page) in made.items():           # all at the end, so that no file's time tells
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n", "utf-8")
        (folder / name / "viewer.html").write_text(vit.fill_template(page).replace("</head>", HIDE, 1), "utf-8")
    (folder / "draw").write_text(f"{draw}\n", "utf-8")


def check(path, folder=None):
    """Wrong or NotAttempted for ANSWERS and WHY in the file `path`; nothing when they are right."""
    folder, answers, why = folder or FOLDER, function(path, "ANSWERS"), function(path, "WHY")
    for name, value in (("ANSWERS", answers), ("WHY", why)):
        if not isinstance(value, dict):
            raise Wrong(f"{name} is no dictionary any more", "Put your answers in place of what stands there, and leave the names.")
    if all(answers.get(name) is None for name in NAMES):
        raise NotAttempted
    try:
        truth = key(int((folder / "draw").read_text("utf-8")))
        metrics = {name: json.loads((folder / name / "metrics.json").read_text("utf-8")) for name in NAMES}
    except (OSError, ValueError):
        raise Wrong("there are no runs to diagnose", "Make them: python tests/exercises/ex6_diagnose.py") from None
    for name in NAMES:
        if answers.get(name) is None:
            raise Wrong(f"no answer for {name} yet", "Two that you know give away the third; write all three.")
        if answers[name] not in BREAK:
            raise Wrong(f"{name}: {answers.get(name)!r} is none of the three", f"Allowed are {', '.join(BREAK)}.")
    if len(set(answers[name] for name in NAMES)) < 3:
        raise Wrong("one answer was given twice", "Each of the three runs is another one.")
    for name in NAMES:
        reason(name, str(why.get(name, "")), metrics)
    wrong = [name for name in NAMES if answers[name] != truth[name]]
    pair = tuple(sorted(answers[name] for name in wrong))
    if len(pair) == 2:
        raise Wrong(" and ".join(pair) + " changed places", HINTS[pair])
    if pair:
        raise Wrong("none of the three is right", "\n".join(f"{a} or {b}: {hint}" for (a, b), hint in HINTS.items()))


def reason(name, sentence, metrics):
    """Wrong unless the sentence names a number or a map of the page, and every figure in it was measured in a run."""
    if len(sentence.split()) < 4:
        raise Wrong(f"the reason for {name} is no sentence yet" if sentence.strip() else f"no reason for {name} yet",
                    "An answer without its number is a guess. Write the sentence in WHY.")
    words = sentence.lower().replace("_", " ")
    keys = [key.replace("_", " ") for key in metrics[name]]
    if not any(key in words for key in keys) and not re.search(r"\b(gap|probe|loss|map|rollout|occlusion)", words):
        raise Wrong(f"the reason for {name} names no number", "Say which, of metrics.json (probe_trained, probe_gap, "
                    "alignment, train_ce ...), or what the maps of the page show.")
    values = [v for m in metrics.values() for x in m.values() for v in (x if isinstance(x, list) else [x])]
    values = [abs(v) for v in values if isinstance(v, (int, float))]
    for figure in re.findall(r"\d*\.\d+", sentence):
        rounding = 0.51 * 10 ** -len(figure.split(".")[1])
        if not any(abs(v - float(figure)) <= rounding for v in values):
            raise Wrong(f"the reason for {name} says {figure}, which no run measured", "Read it off again.")


def main(argv=None):
    """The command of ex6_diagnose.py."""
    parser = argparse.ArgumentParser(prog="ex6_diagnose.py", description="Make three runs to diagnose.")
    parser.add_argument("--draw", type=int, help="decides which is which; give a class the same (default: a fresh one)")
    parser.add_argument("--smoke", action="store_true", help="tiny runs that nobody can diagnose")
    args = parser.parse_args(argv)
    draw = secrets.randbelow(10**6) if args.draw is None else args.draw
    try:
        make(draw, FOLDER, args.smoke)
    except subprocess.CalledProcessError as error:
        print(f"ex6_diagnose.py: a run ended with status {error.returncode}; see above", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"ex6_diagnose.py: the runs cannot be written: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nex6_diagnose.py: interrupted; nothing was written", file=sys.stderr)
        return 130
    print(f"Made: {FOLDER.parent.name}/{FOLDER.name}/A, B and C (draw {draw}). Read the viewer.html and metrics.json\n"
          "of each, write your answers into tests/exercises/ex6_diagnose.py, then: pytest tests/exercises -k ex6")
    return 0
