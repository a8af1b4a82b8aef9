"""Exercise 6: diagnose (15 minutes, and about three for the runs).

Objective: tell a sound run from two broken ones by what it measured.

First: python tests/exercises/ex6_diagnose.py
It makes three runs of one seed, in outputs/diagnose/A, B and C, and a draw decides which is which:
    "clean"         nothing broken
    "interleaved"   tokens cut without the permute, in training and probing
    "shuffled"      position tags permuted, in probing only
Write: from metrics.json and viewer.html alone, which is which, and for each a sentence with the
number by which you knew. (The page leaves out its view of the tokens: it would tell.)
Check: pytest tests/exercises -k ex6
"""
ANSWERS = {"A": None, "B": None, "C": None}
WHY = {
    "A": "",
    "B": "",
    "C": "",
}

if __name__ == "__main__":
    import sys

    from checkers.diagnose import main
    sys.exit(main())
