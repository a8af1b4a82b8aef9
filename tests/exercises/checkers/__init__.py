"""What the checkers of the exercises share: reading a learner's file, and the verdict."""
import importlib.util
import itertools
import sys
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
sys.path.append(str(ROOT))           # for `import vit`; appended, so it hides nothing
_serial = itertools.count()


class NotAttempted(Exception):
    """The stub is still a stub."""


class Wrong(Exception):
    """A mistake with a name.

    name: a few words; effect: what it does to a model; picture: text to look at, or "".
    """

    def __init__(self, name, effect, picture=""):
        super().__init__(name)
        self.name, self.effect, self.picture = name, effect, picture


@dataclass(frozen=True)
class Verdict:
    """state: "solved", "wrong" or "not attempted yet"; message: what the learner reads."""
    state: str
    name: str
    message: str


def load(path):
    """The module in the file `path`, read anew on every call; Wrong when it cannot be imported."""
    spec = importlib.util.spec_from_file_location(f"exercise_{next(_serial)}", path)
    module = importlib.util.module_from_spec(spec)
    keep, sys.dont_write_bytecode = sys.dont_write_bytecode, True    # two edits within a second must both count
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise Wrong("the file cannot be imported", where(error)) from None
    finally:
        sys.dont_write_bytecode = keep
    return module


def function(path, name):
    """The attribute `name` of the learner's file."""
    module = load(path)
    if not hasattr(module, name):
        raise Wrong(f"{Path(path).name} has no `{name}`", f"The checker looks for the name `{name}`; keep it.")
    return getattr(module, name)


def where(error):
    """An error of the learner's code in one line: the kind, the text, and their line."""
    text = " ".join(str(error).split()) or "(no text)"
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {text}"
    frames = [f for f in traceback.extract_tb(error.__traceback__)
              if Path(f.filename).parent != Path(__file__).parent and "torch" not in Path(f.filename).parts]
    at = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    return f"{type(error).__name__}: {text}{at}"


def verdict(check, path, word):
    """Run `check(path)` and put what happened into a Verdict; `word` is said when it is right."""
    try:
        more = check(path)
    except NotAttempted:
        return Verdict("not attempted yet", "not attempted yet", "not attempted yet")
    except Wrong as wrong:
        effect = "\n".join(textwrap.fill(line, 90) for line in wrong.effect.splitlines())
        parts = [f"The mistake: {wrong.name}.", effect, wrong.picture]
        return Verdict("wrong", wrong.name, "\n\n".join(filter(None, parts)))
    return Verdict("solved", "right", more or word)
