"""The cells of tables and other small parts, which a page has hundreds of.

They are functions and no macros, because a call of a macro takes several times as long. Every text is escaped
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from markupsafe import Markup, escape

from ...cluster import ClientStats, Latency
from .format import NOT_KNOWN, percentile
from .links import is_web


@lru_cache(8192)
def safe(text: str) -> str:
    """The text escaped, for attributes too. Pages show the same labels and names again and again."""
    return str(escape(str(text)))  # or what is markup once would be taken for markup wherever it is text


@lru_cache(1024)
def th(label: str, n: bool = True) -> Markup:
    """The head of a column; of numbers, unless `n` says otherwise."""
    kind = ' class="n"' if n else ""
    return Markup(f'<th scope="col" role="columnheader"{kind}>{safe(label)}</th>')


@lru_cache(1024)
def ths(*labels: str) -> Markup:
    """Heads of columns of numbers."""
    return Markup("".join(map(th, labels)))


def td(label: str, value: object, zero: bool = False, low: bool = False) -> Markup:
    """A number. `zero` greys out what says nothing. A phone leaves out what is `low`, and shows the label."""
    return Markup(_td(label, value, zero, low))


def tds(*cells: tuple[object, ...]) -> Markup:
    """Several numbers, each given as `td` takes it."""
    return Markup(numbers(*cells))


def numbers(*cells: tuple[object, ...]) -> str:
    """As `tds`, for what is put together here: Markup would escape what it is added to."""
    return "".join([_td(*cell) for cell in cells])  # type: ignore[arg-type]


def _td(label: str, value: object, zero: bool = False, low: bool = False) -> str:
    if type(value) is int:
        text = f"{value:,}"
        zero = zero or not value
    elif value is None:
        text = NOT_KNOWN
    else:
        text = safe(str(value))
        zero = zero or text == "0"
    return f"{_opened(label, zero, low)}{text}</td>"


@lru_cache(1024)
def _opened(label: str, zero: bool, low: bool) -> str:
    kind = (" low" if low else "") + (" zero" if zero else "")
    return f'<td role="cell" class="n{kind}" data-label="{safe(label)}">'


def figure(label: str, value: object, unit: str = "", kind: str = "") -> Markup:
    """One of the large figures at the head of a page."""
    colour = f' class="{safe(kind)}"' if kind else ""
    suffix = f'<span class="unit">{safe(unit)}</span>' if unit else ""
    return Markup(f"<div{colour}><dt>{safe(label)}</dt><dd>{escape(value)}{suffix}</dd></div>\n")


def crumbs(steps: Iterable[tuple[str, str]], last: str) -> Markup:
    """The way to a page: name and address of each page above it."""
    links = "".join([f'<li><a href="{safe(url)}">{safe(name)}</a></li>' for name, url in steps])
    here = f'<li aria-current="page">{safe(last)}</li>'
    return Markup(f'<nav class="crumbs" aria-label="Breadcrumb"><ol>{links}{here}</ol></nav>\n')


def latency_heads(latency: Latency) -> Markup:
    """The heads of the columns of percentiles."""
    return Markup("".join([th(percentile(each.quantile)) for each in latency.percentiles or ()]))


@lru_cache(1024)
def chart(title: str, history: str, column: str, hint: str = "") -> Markup:
    """Where a script draws the chart of a column of the history."""
    told = f"<span>{safe(hint)}</span>" if hint else ""
    name = safe(title)
    return Markup(
        f'<figure class="chart"><figcaption><b>{name}</b>{told}<output></output></figcaption>\n'
        f'<div class="plot" data-own data-history="{safe(history)}" data-column="{safe(column)}" role="img" '
        f'aria-label="{name}: chart of the last half hour">'
        '<span class="wait">Collecting: the chart begins with this page</span></div></figure>\n'
    )


@lru_cache(1024)
def button(url: str, label: str, kind: str = "") -> Markup:
    """A link that opens a dialog."""
    return Markup(f'<a class="button {safe(kind)}" data-dialog href="{safe(url)}">{safe(label)}</a>\n')


def menu(what: str, entries: Iterable[tuple[str, str, str]]) -> Markup:
    """What may be done with a row: label, address and kind of each entry. A `page` opens in no dialog."""
    links = []
    for label, url, kind in entries:
        dialog = "" if kind == "page" else " data-dialog"
        colour = ' class="danger"' if kind == "danger" else ""
        links.append(f'<a href="{safe(url)}"{dialog}{colour}>{safe(label)}</a>')
    return Markup(
        f'<details class="more"><summary aria-label="Actions for {safe(what)}">⋯</summary><div>\n'
        f"{''.join(links)}\n</div></details>\n"
    )


def client_name(client: ClientStats) -> Markup:
    """A client's host, its id where that tells more, its address and what it says it is."""
    host = client.hostname
    known = (host, host.partition(".")[0])
    name = client.client_id
    more = f' <span class="muted">({safe(name)})</span>' if name and name not in known else ""
    agent = safe(client.user_agent or "no user agent")
    address = safe(client.remote_address)
    return Markup(f'<b>{safe(host) or address}</b>{more}<span class="sub">{address} · {agent}</span>')


def client_tags(client: ClientStats) -> Markup:
    """What is special about a client's connection."""
    tags = []
    if client.sample_rate:
        tags.append(f'<span class="tag">sampled {escape(client.sample_rate)} %</span>')
    if client.tls:
        told = f"{client.tls_version} {client.tls_cipher_suite} {client.tls_negotiated_protocol}".strip()
        tags.append(f'<span class="tag good" title="{escape(told)}">TLS</span>')
    tags += [f'<span class="tag">{name}</span>' for name in ("deflate", "snappy") if getattr(client, name)]
    if client.authed:
        identity = escape(client.auth_identity or "authed")
        if is_web(client.auth_identity_url):
            url = escape(client.auth_identity_url)
            identity = Markup(f'<a href="{url}" rel="noreferrer noopener">{identity}</a>')
        tags.append(f'<span class="tag info">{identity}</span>')
    return Markup(" ".join(tags))
