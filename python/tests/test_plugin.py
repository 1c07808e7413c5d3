"""What the plug-ins for vLLM and SGLang share (lathe.compat.plugin); integrations/tests runs them against the engines."""

import logging

import numpy as np
import pytest

import lathe
from lathe.compat import plugin

KNOWN = ("self", "q", "kv")


@pytest.mark.parametrize(
    "function",
    [
        lambda self, q, kv: None,
        lambda self, q, kv, more=0: None,
        lambda self, q, kv, *args, **kwargs: None,
        lambda self, q, *, kv: None,
    ],
)
def test_functions_that_take_the_known_calls(function):
    assert plugin.differing(function, KNOWN) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda self, q: None,
        lambda self, q, more, kv: None,
        lambda self, q, kv, more: None,
        lambda self, kv, q: None,
        lambda self, q, kv_cache: None,
    ],
)
def test_functions_that_do_not(function):
    names = ", ".join(plugin.parameters(function))
    assert plugin.differing(function, KNOWN) == f"wanted (self, q, kv), got ({names})"


def test_switches(monkeypatch):
    made = plugin.Switches("LATHE_TRY", ("off", "on"), "on")
    assert (made.mode, made.strict) == ("on", False)
    monkeypatch.setenv("LATHE_TRY", "off")
    monkeypatch.setenv("LATHE_TRY_STRICT", "1")
    made = plugin.Switches("LATHE_TRY", ("off", "on"), "on")
    assert (made.mode, made.strict) == ("off", True)
    monkeypatch.setenv("LATHE_TRY_STRICT", "yes")
    with pytest.raises(lathe.LatheError, match="LATHE_TRY_STRICT: wanted 0 or 1, got yes"):
        plugin.Switches("LATHE_TRY", ("off", "on"), "on")


def test_fall_backs_are_counted_and_said_once_for_each_reason(caplog):
    tally = plugin.Tally("lathe_try", strict=False)
    with caplog.at_level(logging.WARNING):
        for reason in ("a", "b", "a", "a"):
            tally.fall_back("attend", reason)
    assert tally.fallen_back == {"attend: a": 3, "attend: b": 1}
    assert [record.getMessage().rsplit(" ", 1)[1] for record in caplog.records] == ["a", "b"]
    with pytest.raises(lathe.LatheError, match="wanted a call that Lathe serves, got a; unset LATHE_TRY_STRICT"):
        plugin.Tally("lathe_try", strict=True).fall_back("attend", "a")


@pytest.mark.parametrize("rows, size", [(192, 64), (96, 32), (7, 1), (64, 64)])
def test_pages_of_rows(rows, size):
    numbers = np.arange(rows * 3, dtype=np.uint16).reshape(rows, 3)
    pool, tokens = plugin.pages(numbers)
    assert tokens == size and pool.shape == (rows // size, size * 6)
    assert np.shares_memory(pool, numbers)


def test_host_memory_is_served():
    assert plugin.place_reason(np.zeros(1)) is None
