"""The page in the language of whoever reads it."""

import json
from functools import partial

from starlette.requests import HTTPConnection
from starlette.types import Message, Scope, Send

from app.languages.translation import COOKIE, Translation, negotiated, translation
from app.web.rewriting import EVENTS, Rewritten

_DOCUMENT, _EVENT = "text/html", b"data: "


def in_language(scope: Scope, send: Send) -> Send:
    """Return a sender of documents, answers and updates in the language of whoever reads them."""
    connection = HTTPConnection(scope)
    accepted = connection.headers.get("accept-language", "").split(",")  # in the order of a user's liking
    languages = (entry.partition(";")[0].strip() for entry in accepted)
    language = negotiated([connection.cookies.get(COOKIE, ""), *languages])
    if language == "en":
        return send
    return Rewritten(
        send, (_DOCUMENT, "application/json", EVENTS), partial(_rewritten, translation(language))
    )


def _rewritten(translation: Translation, _: Message, kind: str, body: bytes) -> bytes:
    if kind == EVENTS and not body.startswith(_EVENT):
        return body
    if kind == EVENTS:
        return _EVENT + _answer(translation, body.removeprefix(_EVENT)) + b"\n\n"
    return _document(translation, body) if kind == _DOCUMENT else _answer(translation, body)


def _answer(translation: Translation, body: bytes) -> bytes:
    return json.dumps(translation.answer(json.loads(body)), ensure_ascii=False).encode()


def _document(translation: Translation, body: bytes) -> bytes:
    language, markup = translation.language, translation.markup(body.decode())
    markup = markup.replace('<html lang="en"', f'<html lang="{language}"', 1)
    markup = markup.replace(f'<option value="{language}"', f'<option value="{language}" selected', 1)
    return markup.replace('id="texts">{}', f'id="texts">{translation.script}', 1).encode()
