"""A sample contains every kind of case, and everything is included on request."""

import pytest

from oracle.support import sampling


def test_sample_covers_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL", False)
    items = ["a1", "a2", "a3", "a4", "b1", "c1", "c2"]
    assert sampling.sampled(items, 3, lambda item: item[0]) == ["a1", "a4", "c2", "b1"]
    assert sampling.every(6) == 6


def test_all_cases_setting_disables_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL", True)
    items = ["a1", "a2", "b1"]
    assert sampling.sampled(items, 3, lambda item: item[0]) == items
    assert sampling.every(6) == 1
