"""Who gets in: tokens, names of the server, origins."""

from __future__ import annotations

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.studio.ui import server
from trainshed.studio.ui.entry import Access

pytestmark = pytest.mark.safety
BEHIND = Access("own", "others", "https://team.example/trainshed/")


def test_a_token_lets_act_or_look_or_nothing() -> None:
    assert [BEHIND.acts(given) for given in ("own", "others", "", "own ", "Own")] == [True, False, None, None, None]
    assert [Access(looks="others").acts(given) for given in ("others", "")] == [False, None], "no token is nobody's"


def test_the_proxy_is_known_by_its_address_alone() -> None:
    for host in ("team.example", "127.0.0.1:8811", "localhost"):
        assert BEHIND.knows(host)
    for host in ("evil.example", "team.example.evil", "team.example:99", "trainshed", ""):
        assert not BEHIND.knows(host), host
    assert not Access("own").knows("team.example") and not Access("own").knows("")
    assert BEHIND.is_own("https://team.example", "127.0.0.1:8811") and BEHIND.is_own("http://localhost:1", "localhost:1")
    for origin in ("http://team.example", "https://team.exampl", "https://evil", "null", "", "https:", "https://[::1"):
        assert not BEHIND.is_own(origin, "127.0.0.1:8811"), origin
        assert not Access("own").is_own(origin, "127.0.0.1:8811"), origin


def test_an_address_of_a_proxy_is_brought_into_the_browsers_form() -> None:
    assert server._address("https://Team.example:443/a") == "https://team.example/a/" and server._address("") == ""
    for wrong in (
        "team.example",
        "ftp://a/",
        "https://",
        "https://a@b/",
        "https://a/?b",
        "https://a/#c",
        "/a",
        "https://[x/",
    ):
        with pytest.raises(TrainshedError, match="is not an address"):
            server._address(wrong)
