import doctest
import pathlib

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
MODEL = DOCUMENT.parents[1] / "models" / "tiny-v32"


def test_the_documents_examples_print_what_they_say():
    # What follows an example in a code fence starts with ```, so each block ends with a blank line.
    result = doctest.testfile(
        str(DOCUMENT), module_relative=False, globs={"TINY_V32": str(MODEL)}
    )
    assert result.attempted > 15 and result.failed == 0
