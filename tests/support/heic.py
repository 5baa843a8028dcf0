"""HEIC files as phones write them, put together from HEVC frames, since the product only reads them."""

import struct
from collections.abc import Sequence
from io import BytesIO

import av
import numpy as np
from PIL import Image

EXIF = b"\0\0\0\6Exif\0\0"  # begins the item, as the distance to the TIFF header requires


def box(kind: bytes, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return struct.pack(">I4s", 8 + len(content), kind) + content


def full_box(kind: bytes, *parts: bytes, version: int = 0, flags: int = 0) -> bytes:
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def nclx(primaries: int, transfer: int, matrix: int = 9) -> bytes:
    """Return the property that declares the colours by their codes of ITU-T H.273."""
    return box(b"colr", b"nclx", struct.pack(">HHHB", primaries, transfer, matrix, 0))


def icc(profile: bytes) -> bytes:
    return box(b"colr", b"prof", profile)


def heic(
    images: Sequence[Image.Image],
    *,
    properties: Sequence[bytes] = (),
    exif: bytes = b"",
    primary: int = 1,
    bits: int = 8,
    brand: bytes = b"heic",
) -> bytes:
    """Write pictures of even sizes as one HEIC.

    Args:
        properties: Boxes for all pictures, such as `irot` or `colr`, in the order in which they apply.
        exif: The EXIF of the first picture, from its TIFF header on.
        primary: The number of the picture that viewers show, from 1.
    """
    frames = [_frame(image, bits) for image in images]
    items, data, own = [(b"hvc1", sample) for _, sample in frames], [], list[bytes]()
    links = list[bytes]()
    shared = len(frames) * 2
    for number, (image, (configuration, _)) in enumerate(zip(images, frames, strict=True), 1):
        own += [configuration, full_box(b"ispe", struct.pack(">II", *image.size))]
        marks = [0x80 | 2 * number - 1, 2 * number, *(0x80 | shared + n + 1 for n in range(len(properties)))]
        links.append(struct.pack(">HB", number, len(marks)) + bytes(marks))
    references = b""
    if exif:
        items.append((b"Exif", EXIF + exif))
        references = full_box(b"iref", box(b"cdsc", struct.pack(">HHH", len(items), 1, 1)))
    entries = [
        full_box(b"infe", struct.pack(">HH4s", number, 0, kind), b"\0", version=2)
        for number, (kind, _) in enumerate(items, 1)
    ]

    def meta(start: int) -> bytes:
        places, at = b"", start
        for number, (_, sample) in enumerate(items, 1):
            places += struct.pack(">HHHII", number, 0, 1, at, len(sample))
            at += len(sample)
        return full_box(
            b"meta",
            full_box(b"hdlr", b"\0\0\0\0pict", bytes(13)),
            full_box(b"pitm", struct.pack(">H", primary)),
            full_box(b"iinf", struct.pack(">H", len(items)), *entries),
            references,
            box(
                b"iprp",
                box(b"ipco", *own, *properties),
                full_box(b"ipma", struct.pack(">I", len(links)), *links),
            ),
            full_box(b"iloc", struct.pack(">BBH", 0x44, 0, len(items)), places),
        )

    data = b"".join(sample for _, sample in items)
    head = box(b"ftyp", brand, b"\0\0\0\0", b"mif1heic")
    return head + meta(len(head) + len(meta(0)) + 8) + box(b"mdat", data)


def _frame(image: Image.Image, bits: int) -> tuple[bytes, bytes]:
    """Encode a frame, and return the box with the decoder's configuration, and the coded frame."""
    content, kind = BytesIO(), "yuv444p" if bits == 8 else "yuv444p10le"
    with av.open(content, "w", format="mp4") as container:
        stream = container.add_stream(
            "libx265", rate=1, options={"x265-params": "lossless=1:log-level=none:pools=none:frame-threads=1"}
        )
        stream.width, stream.height, stream.pix_fmt = *image.size, kind
        stream.codec_context.colorspace = 1
        frame = av.VideoFrame.from_ndarray(np.asarray(image.convert("RGB")), "rgb24")
        frame = frame.reformat(format=kind, dst_colorspace="ITU709")
        for packet in (*stream.encode(frame), *stream.encode()):
            packet.pts = packet.dts = 0
            container.mux(packet)
    mp4 = content.getvalue()
    start = mp4.index(b"hvcC") - 4
    (size,) = struct.unpack(">I", mp4[start : start + 4])
    content.seek(0)
    with av.open(content) as container:
        (sample,) = (bytes(packet) for packet in container.demux() if packet.size)
    return mp4[start : start + size], sample
