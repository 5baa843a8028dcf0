"""Counts the bytes of live tensors, for machines that have no GPU to ask.

A plan, a cap and a peak then mean the same everywhere. What is counted are storages, each once however many
views it has, from the operation that makes it to the death of its last tensor. What a kernel takes and gives
back within one operation is not seen.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

_MIB, _GIB = 1024**2, 1024**3
_ATEN = torch.ops.aten
_STRIDED = torch.strided


class AccountedOutOfMemory(torch.OutOfMemoryError):
    """A tensor would pass the cap of the accounting device."""


class _Kind(Enum):
    """What an operation can do to the account."""

    ALIASES = 0  # gives views, or writes in place
    MAKES = 1  # may give new storages
    CONSISTS = 2  # made of others, whose own results count too
    MOVES = 3  # puts what it is given on a device


# Attention without a fused kernel keeps scores of tokens x tokens between its steps.
_CONSISTS = frozenset({"aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math"})
_MOVES = frozenset({_ATEN.to.device, _ATEN.to.dtype_layout})


def _kind_of(operation: Any) -> _Kind:
    name = operation.name()
    if name.split(".")[0] in _CONSISTS:
        return _Kind.CONSISTS
    if operation in _MOVES:
        return _Kind.MOVES
    returned = [value.alias_info for value in operation._schema.returns]
    if any(info is None for info in returned):
        return _Kind.MAKES
    if all(info.is_write for info in returned):
        return _Kind.ALIASES
    # `reshape`, `contiguous` and their like are marked as views and copy when they must. They are composites;
    # the views proper are not.
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    return _Kind.MAKES if is_composite else _Kind.ALIASES


class _StorageRef(weakref.ref[torch.UntypedStorage]):
    """A storage that counts, by the address that is its own while it lives."""

    __slots__ = ("key", "num_bytes")
    key: int
    num_bytes: int


class PassStart(NamedTuple):
    """What an account had when a part of the work began."""

    peak: int
    live: int


class Account(TorchDispatchMode):
    """The live tensors of a device that is part of main memory.

    On the device are: what was adopted, what an operation makes from something that is on the device, what
    it makes from nothing, and what `to` copies. Operations on other tensors are the host's. They are seen
    while the account is entered, and only on the thread that entered it, as a dispatch mode belongs to its
    thread; what other threads copy has to be adopted. Counting itself may be asked for from any thread.

    Attributes:
        cap_bytes: what the live bytes never pass; None for no cap.
    """

    def __init__(self, cap_bytes: int | None = None) -> None:
        super().__init__()
        self.cap_bytes = cap_bytes
        self._live = self._peak = 0
        self._refs: dict[int, _StorageRef] = {}
        # A finaliser may run at any place in any thread, so all it does is to append, which is atomic.
        self._dead: deque[weakref.ref[torch.UntypedStorage]] = deque()
        self._lock = threading.Lock()
        self._kinds: dict[int, tuple[_Kind, Any]] = {}
        self._depth = threading.local()

    @property
    def allocated_bytes(self) -> int:
        """Of the tensors that live now."""
        with self._lock:
            self._bury()
            return self._live

    @property
    def peak_bytes(self) -> int:
        """The most that lived at one time since the last `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """From now on the peak counts anew, from what lives."""
        with self._lock:
            self._bury()
            self._peak = self._live

    def adopt(self, what: torch.nn.Module | Iterable[Tensor]) -> None:
        """Counts tensors that came to the device unseen. What counts already is not counted again.

        Raises:
            AccountedOutOfMemory: if not all fit under the cap; none of them counts then.
        """
        storages = {storage._cdata: storage for storage in map(_storage, _tensors(what)) if storage}
        with self._lock:
            self._bury()
            unseen = [storage for key, storage in storages.items() if key not in self._refs]
            self._check(sum(storage.nbytes() for storage in unseen))
            for storage in unseen:
                self._add(storage, storage._cdata, storage.nbytes())

    def release(self, what: torch.nn.Module | Iterable[Tensor]) -> None:
        """Counts tensors no longer: they belong to the host from now on."""
        keys = {storage._cdata for storage in map(_storage, _tensors(what)) if storage}
        with self._lock:
            self._bury()
            for ref in (self._refs.pop(key, None) for key in keys):
                self._live -= ref.num_bytes if ref else 0

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor counts."""
        storage = _storage(tensor)
        with self._lock:
            self._bury()
            return storage is not None and storage._cdata in self._refs

    def begin_pass(self) -> PassStart:
        """From here on until `end_pass` the peak is that of a part of the work."""
        with self._lock:
            self._bury()
            start = PassStart(self._peak, self._live)
            self._peak = self._live
            return start

    def end_pass(self, start: PassStart) -> tuple[int, int]:
        """How much more the part took at its peak, and after it, than was there at its start."""
        with self._lock:
            self._bury()
            taken, kept = self._peak - start.live, self._live - start.live
            self._peak = max(self._peak, start.peak)
            return taken, kept

    def require(self, num_bytes: int) -> None:
        """Counts bytes that will live for a while and will not be seen.

        Raises:
            AccountedOutOfMemory: if they do not fit under the cap.
        """
        with self._lock:
            self._bury()
            self._check(num_bytes)
            self._peak = max(self._peak, self._live + num_bytes)

    @property
    def is_watching(self) -> bool:
        """Whether it is entered on this thread, and not paused."""
        return getattr(self._depth, "value", 0) > 0 and not getattr(self._depth, "is_paused", False)

    def pause(self) -> None:
        """Operations on this thread are not seen until `resume`."""
        self._depth.is_paused = True
        super().__exit__(None, None, None)

    def resume(self) -> None:
        self._depth.is_paused = False
        super().__enter__()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and torch's guard around each operation costs as much as the counting."""
        return False

    def __enter__(self) -> Account:
        self._depth.value = getattr(self._depth, "value", 0) + 1
        if self._depth.value == 1:
            super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._depth.value -= 1
        if self._depth.value == 0:
            super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # This runs for each operation of a job, so it is written for speed: no call that can be spared.
        known = self._kinds.get(id(func))  # an operation's own hash is a Python call, and so is its own call
        if known is None:
            known = self._kinds[id(func)] = _kind_of(func), func._op
        kind, operation = known
        if kind is _Kind.CONSISTS:
            return self._step_by_step(func, args, kwargs or {})
        result = operation(*args, **kwargs) if kwargs else operation(*args)
        if kind is _Kind.ALIASES:
            return result
        if type(result) is Tensor and result.is_cpu and result.layout is _STRIDED:
            self._see(result.untyped_storage(), args, kwargs, kind)
            return result
        for tensor in _tensors_in((result,)):
            storage = _storage(tensor)
            if storage is not None:
                self._see(storage, args, kwargs, kind)
        return result

    def _step_by_step(self, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        super().__enter__()
        try:
            return operation.decompose(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)

    def _see(
        self,
        storage: torch.UntypedStorage,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        kind: _Kind,
    ) -> None:
        """Counts what an operation has made from `args` and `kwargs`, if it is on the device."""
        key = storage._cdata
        with self._lock:
            if self._dead:
                self._bury()
            if key in self._refs:
                return
            # Nearly always the first argument is a tensor on the device.
            first = args[0] if args else None
            source = _storage(first) if type(first) is Tensor else None
            if source is None or source._cdata not in self._refs:
                given = _tensors_in((*args, *kwargs.values()) if kwargs else args)
                sources = {source._cdata for source in map(_storage, given) if source}
                # Not `isdisjoint`, which would go through all that counts.
                is_made_there = (
                    kind is _Kind.MOVES or not sources or any(source in self._refs for source in sources)
                )
                if key in sources or not is_made_there:
                    return
            num_bytes = storage.nbytes()
            if self.cap_bytes is not None:
                self._check(num_bytes)
            self._add(storage, key, num_bytes)

    def _check(self, num_bytes: int) -> None:
        cap = self.cap_bytes
        if cap is not None and self._live + num_bytes > cap:
            raise AccountedOutOfMemory(_message(num_bytes, cap, self._live))

    def _add(self, storage: torch.UntypedStorage, key: int, num_bytes: int) -> None:
        ref = _StorageRef(storage, self._dead.append)
        ref.key, ref.num_bytes = key, num_bytes
        self._refs[key] = ref
        self._live += num_bytes
        if self._live > self._peak:
            self._peak = self._live

    def _bury(self) -> None:
        while self._dead:
            ref = self._dead.popleft()
            assert isinstance(ref, _StorageRef)
            # Released storages do not count any more, and their address may be another's.
            if self._refs.get(ref.key) is ref:
                del self._refs[ref.key]
                self._live -= ref.num_bytes


def to_host(tensor: Tensor) -> Tensor:
    """`tensor.cpu()`, which an account that is entered on this thread hears of.

    Torch cannot tell the two parts of main memory apart, so `.cpu()` alone would leave the tensor with the
    account. A tensor that shares its storage is copied, as it would be from a GPU.
    """
    found = tensor.cpu()
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, Account) and mode.holds(found):
            if found.numel() * found.element_size() != found.untyped_storage().nbytes():
                found = found.clone()
            mode.release([found])
    return found


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """None for what does not lie in main memory as one piece."""
    if not tensor.is_cpu or tensor.layout is not _STRIDED:
        return None
    return tensor.untyped_storage()


def _tensors(what: torch.nn.Module | Iterable[Tensor]) -> Iterable[Tensor]:
    return [*what.parameters(), *what.buffers()] if isinstance(what, torch.nn.Module) else what


def _tensors_in(values: Iterable[Any]) -> Iterable[Tensor]:
    """Of an operation's arguments or results, in lists too."""
    for value in values:
        kind = type(value)
        if kind is Tensor:
            yield value
        elif kind is list or kind is tuple:
            yield from _tensors_in(value)
        elif isinstance(value, Tensor):
            yield value


def _message(num_bytes: int, cap: int, live: int) -> str:
    """In the words of torch's allocators, so that the same reader understands both."""
    return (
        f"CPU out of memory. Tried to allocate {_size(num_bytes)}. The accounting device has a total "
        f"capacity of {_size(cap)} of which {_size(max(0, cap - live))} is free. Of the allocated memory "
        f"{_size(live)} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )


def _size(num_bytes: int) -> str:
    if num_bytes < _MIB:
        return f"{num_bytes / 1024:.2f} KiB" if num_bytes >= 1024 else f"{num_bytes} bytes"
    return f"{num_bytes / _GIB:.2f} GiB" if num_bytes >= _GIB else f"{num_bytes / _MIB:.2f} MiB"
