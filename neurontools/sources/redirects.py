"""Redirects that are followed: to HTTP and HTTPS alone, never from an encrypted address to one that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler

if TYPE_CHECKING:
    from urllib.request import Request


class SafeRedirects(HTTPRedirectHandler):
    """Follows at most five redirects."""

    max_redirections = 5
    max_repeats = 2
    inf_msg = "a redirect in a circle, or too many of them; "

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the request that follows, unless it is less safe than the one before."""
        before, after = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if after not in {"http", "https"} or (before, after) == ("https", "http"):
            fp.close()
            what = "not encrypted; give that address if it is meant" if after == "http" else "not HTTP"
            raise URLError(f"it redirects to {newurl}, which is {what}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
