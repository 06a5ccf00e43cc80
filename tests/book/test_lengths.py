"""The words of a main line: what is folded or may be skipped is not counted."""

import pytest
from lengths import MOST, main_line, words
from pages import by_name, chapters

PAGE = """# A title

One two $a + b$ four {doc}`/book/front/notation`.

$$
c = d
$$ (eq-one)

:::{prf:theorem} Named
:label: thm-one
Five six.
:::

::::{dropdown} Folded
Not counted.
:::{prf:proof}
Nor this.
:::
::::

```{admonition} Folded too
:class: note dropdown
Not counted.
```

## *Further*: may be skipped
Not counted.
### Nor what is below
Not counted.

## Seven
Eight.

## Exercises

```{exercise-start} One
:label: ex-one
```
Not counted.
"""


def test_folds_and_what_may_be_skipped_are_left_out():
    assert "counted" not in main_line(PAGE) and "Nor" not in main_line(PAGE)
    assert words(main_line(PAGE)) == len("A title One two x four x Five six Seven Eight".split())


@pytest.mark.parametrize("page", chapters(), ids=by_name)
def test_no_main_line_is_too_long(page):
    assert words(main_line(page.text)) <= MOST
