"""Calls that must not pass, and the test that makes them."""

import warnings

import pytest


class Calls:
    """Calls, each of which names what it hands over and another check that would have let it pass."""

    def __init__(self):
        self.all = []

    def add(self, name, instead, call, raises=ValueError, match="not judged"):
        self.all.append(pytest.param(call, raises, match, id=f"{name} ({instead})"))

    def test(self):
        """A test that makes every call, with warnings ignored, and expects its error."""

        @pytest.mark.parametrize(("call", "raises", "match"), self.all)
        def does_not_pass(call, raises, match):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with pytest.raises(raises, match=match):
                    call()

        return does_not_pass
