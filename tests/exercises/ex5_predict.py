"""Exercise 5: predict, then run (10 minutes, and about a minute a run).

Objective: know what you believe about a model before it tells you.

Predict: for each line below the accuracy of a linear probe on held-out frames, from 0 to 1. The
question is always: in which quadrant of the table does the block lie? Chance is 0.25.
Then: python tests/exercises/ex5_predict.py
It reads the finished runs in outputs/, makes those that are missing, and puts your numbers beside
the measured ones.  Change no number afterwards: the difference is the lesson.
"""
PREDICTIONS = {
    "trained": None,        # the ViT, trained
    "random": None,         # the same ViT with random weights, never trained
    "interleaved": None,    # trained on tokens cut without the permute (vit.py --break patch_interleave)
    "shuffled": None,       # trained as it should be, position tags permuted when probed (--break shuffle_pos)
    "bag": None,            # trained without any position tags (--break no_pos)
}

if __name__ == "__main__":
    import sys

    from checkers.predict import main
    sys.exit(main(PREDICTIONS))
