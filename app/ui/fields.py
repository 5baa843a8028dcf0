"""The types of the page's arguments that come in a message: each is a field of its JSON object."""

from typing import Annotated, Any

from fastapi import Body

from app.ui.pictures import Upload

# FastAPI would otherwise look for plain values in the address, and take a single field for the whole message.
_FIELD = Body(embed=True)
_MOST_JOBS = 5000  # as many keep a thread for a few seconds

Text = Annotated[str, _FIELD]
File = Annotated[Upload, _FIELD]
Flag = Annotated[bool, _FIELD]
Count = Annotated[int, _FIELD]
Jobs = Annotated[list[str], Body(embed=True, max_length=_MOST_JOBS)]
Values = Annotated[dict[str, Any], _FIELD]
MaybeCount = Annotated[int | None, _FIELD]
MaybeNumber = Annotated[float | None, _FIELD]
MaybeValues = Annotated[dict[str, Any] | None, _FIELD]
