"""What a block sets, adds and deletes is put back also when it raises."""

from __future__ import annotations

import types

import pytest

from capwise.compat.patching import replaced, restored


def test_everything_about_a_part_is_put_back():
    part, other = types.SimpleNamespace(kept=1, gone=2), types.SimpleNamespace(kept=3)
    with pytest.raises(KeyError), restored(part, other):
        part.kept, part.added, other.kept = 4, 5, 6
        del part.gone
        raise KeyError
    assert vars(part) == {"kept": 1, "gone": 2} and vars(other) == {"kept": 3}


def test_only_the_one_attribute_is_put_back():
    part = types.SimpleNamespace(mine=1, theirs=2)
    with pytest.raises(KeyError), replaced(part, "mine", 3):
        assert part.mine == 3
        part.theirs = 4
        raise KeyError
    assert vars(part) == {"mine": 1, "theirs": 4}
