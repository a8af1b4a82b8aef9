"""Exercise 5: predictions beside measurements.  `grade` is the one that vit.py --predict uses."""
import argparse
import json
import math
import subprocess
import sys
import textwrap

import vit

from . import ROOT, NotAttempted, Wrong, function

WORKPLACE = ROOT                           # runs are looked for, and made, in outputs/ below it
MEASURED = {                               # prediction: break mode, key in metrics.json, its name in a sentence
    "trained": (None, "probe_trained", "trained probe"),
    "random": (None, "probe_random", "random-init probe"),
    "interleaved": ("patch_interleave", "probe_trained", "interleaved probe"),
    "shuffled": ("shuffle_pos", "probe_trained", "shuffled-tags probe"),
    "bag": ("no_pos", "probe_trained", "bag-of-patches probe"),
}
# What the difference asks: when more, and when less was measured than predicted.
QUESTIONS = {
    "trained": ("Which frames did you think it would miss? Open the page and look for the wrong answers.",
                "What would it need: more epochs, more episodes, another table? Change one flag, predict again."),
    "random": ("Nothing was trained. What in its input tells the quadrants apart all the same? (Majority is "
               "{majority:.2f}, raw pixels {probe_pixels:.2f}.)",
               "Its features are not made for this question. Then what do {probe_random:.2f} against a majority of "
               "{majority:.2f} come from?"),
    "interleaved": ("No token is a patch any more, and the probe is at {probe_trained:.2f}. Which number would have "
                    "told you? (alignment: {alignment}, clean: {clean_alignment})",
                    "The clean run has {clean_trained:.2f}, {clean_low:.2f} to {clean_high:.2f}. Had you only this "
                    "number, would you have seen that something is wrong?"),
    "shuffled": ("The tags are wrong and {probe_trained:.2f} is left; the random model has {probe_random:.2f} with "
                 "the same tags. Which part of it needs no tags?",
                 "Not one weight and not one pixel changed, and {clean_trained:.2f} became {probe_trained:.2f}. "
                 "Where in the model did *where* live?"),
    "bag": ("Without tags the model cannot know where a patch is. What in a bag of patches tells the quadrant? "
            "(Majority is {majority:.2f}.)",
            "What did the tags carry, if {clean_trained:.2f} becomes {probe_trained:.2f} without them?"),
}


def checked(predictions):
    """The five predictions as floats; Wrong or NotAttempted when they are not five numbers from 0 to 1."""
    if not isinstance(predictions, dict):
        raise Wrong("PREDICTIONS is no dictionary any more", "Put your numbers in place of the None, and leave the names.")
    missing = [name for name in MEASURED if predictions.get(name) is None]
    if len(missing) == len(MEASURED):
        raise NotAttempted
    if missing:
        raise Wrong(f"no number yet for {', '.join(missing)}", "A prediction counts only when it was written before.")
    for name in MEASURED:
        value = predictions[name]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise Wrong(f"{name}: {value!r} is not a number", "Write an accuracy from 0 to 1, say 0.5.")
        if 1 < value <= 100:
            raise Wrong(f"{name}: {value} looks like a percentage", f"From 0 to 1 it is {value / 100:g}.")
        if not 0 <= value <= 1:
            raise Wrong(f"{name}: {value} is no accuracy", "Accuracies go from 0 to 1.")
    return {name: float(predictions[name]) for name in MEASURED}


def check(path):
    """Wrong or NotAttempted unless the file `path` holds five predictions."""
    checked(function(path, "PREDICTIONS"))


def measure(mode, seed, smoke):
    """metrics.json of the run of this mode and seed, in outputs/; the run is made when there is none like it."""
    flags = ["--seed", str(seed)] + ["--break", mode] * bool(mode) + ["--smoke"] * smoke
    args = vit.parse_args(flags)
    try:
        metrics = json.loads((WORKPLACE / args.out / "metrics.json").read_text("utf-8"))
        flagged = {*vit.NUMBERS, "break_mode", "smoke", "patchify", "frames"} - {"predict"}
        same = metrics["version"] == vit.VERSION and all(metrics[flag] == getattr(args, flag) for flag in flagged)
    except (OSError, ValueError, KeyError, TypeError):
        same = False
    if not same:
        print(f"\n$ python vit.py {' '.join(flags)}", flush=True)
        subprocess.run([sys.executable, str(ROOT / "vit.py"), *flags], cwd=WORKPLACE, check=True)
        metrics = json.loads((WORKPLACE / args.out / "metrics.json").read_text("utf-8"))
    return metrics


def compare(predictions, runs):
    """Lines: each prediction beside its measurement, graded, with the question that the difference asks.

    predictions: name -> number; runs: break mode (None: clean) -> its metrics.
    """
    clean = runs[None]
    number = lambda value: "not measured" if value is None else f"{value:.2f}"
    yield f"{'':13}{'predicted':>10}{'measured':>10}{'difference':>12}   95 % interval"
    for name, (mode, key, _) in MEASURED.items():
        value, (low, high) = runs[mode][key], runs[mode][key + "_ci"]
        guess = predictions[name]
        yield f"{name:13}{guess:10.2f}{value:10.2f}{value - guess:+12.2f}   {low:.2f} to {high:.2f}"
    for name, (mode, key, words) in MEASURED.items():
        m, (low, high) = runs[mode], runs[mode][key + "_ci"]
        facts = m | {"alignment": number(m.get("alignment")), "clean_alignment": number(clean.get("alignment")),
                     "clean_trained": clean["probe_trained"], "clean_low": clean["probe_trained_ci"][0],
                     "clean_high": clean["probe_trained_ci"][1]}
        question = QUESTIONS[name][m[key] < predictions[name]].format(**facts)
        if low <= predictions[name] <= high:
            question = f"Inside the interval: this run cannot tell you from right. {question}"
        yield ""
        yield from textwrap.wrap(" ".join([*vit.grade(predictions[name], m[key], words), question]), 79)


def main(predictions, argv=None):
    """The command of ex5_predict.py."""
    parser = argparse.ArgumentParser(prog="ex5_predict.py", description="Your predictions beside what is measured.")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the runs (default: 0)")
    parser.add_argument("--smoke", action="store_true", help="tiny runs whose numbers mean nothing")
    args = parser.parse_args(argv)
    try:
        predictions = checked(predictions)
        modes = dict.fromkeys(mode for mode, _, _ in MEASURED.values())
        runs = {mode: measure(mode, args.seed, args.smoke) for mode in modes}
    except NotAttempted:
        print("ex5_predict.py: write your five predictions into the file first", file=sys.stderr)
        return 2
    except Wrong as wrong:
        print(f"ex5_predict.py: {wrong.name}. {wrong.effect}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"ex5_predict.py: the run ended with status {error.returncode}; see above", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nex5_predict.py: interrupted; the runs that are done are kept", file=sys.stderr)
        return 130
    print("", *compare(predictions, runs), sep="\n")
    return 0
