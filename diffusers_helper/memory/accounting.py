"""An account of the bytes of live tensors, for machines that have no GPU to ask.

With it a plan, a cap and a peak mean the same everywhere. It counts storages, each once however many views it
has, from the operation that makes it to the death of its last tensor. Memory that a kernel takes and returns
within one operation is not counted.

Torch has no public figure of its tensors' share of main memory: the statistics of `torch.cuda` have no
counterpart for the CPU, and the profiler records for later use only. Therefore a dispatch mode watches each
operation, as torch documents under "Extending PyTorch", although its module has a private name. A
`TorchFunctionMode`, whose name is public, sees a function of Python as one call even if it makes several
tensors, and is also called for each `x.shape`. Watching costs about 6 microseconds for an operation, or 1 to
4 hundredths of a job of the demo model (`benchmarks/accounting.py`).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_MIB, _GIB = 1024**2, 1024**3
_ATEN = torch.ops.aten
_STRIDED = torch.strided
# Attention without a fused kernel keeps scores of tokens x tokens between its steps. The first operation then
# consists of the second, which has no public name.
_ATTENTION = _ATEN.scaled_dot_product_attention.default
_UNFUSED_ATTENTION = _ATEN._scaled_dot_product_attention_math.default
_TO_DEVICE, _TO_LAYOUT = _ATEN.to.device, _ATEN.to.dtype_layout


class AccountedOutOfMemory(torch.OutOfMemoryError):
    """A tensor that would exceed the cap of the accounting device."""


class _StorageRef(weakref.ref[torch.UntypedStorage]):
    """A counted storage, with the `id` of its Python object, which torch keeps as long as the storage."""

    __slots__ = ("key", "num_bytes")
    key: int
    num_bytes: int


class _Thread(threading.local):
    """The accounts that a thread has entered, each as often as it was entered."""

    def __init__(self) -> None:
        self.entered: list[Account] = []


_thread = _Thread()


class Account(TorchDispatchMode):
    """The live tensors of a device that is part of main memory.

    On the device are the tensors that were adopted, those that an operation makes from a tensor on the device
    or from nothing, and those that `to` copies. Operations on other tensors belong to the host. The account
    sees operations only while it is entered, and only on the thread that entered it, since a dispatch mode
    belongs to its thread; copies by other threads have to be adopted. Any thread may ask for figures.
    """

    def __init__(self, cap_bytes: int | None = None) -> None:
        super().__init__()
        self.cap_bytes = cap_bytes
        self._live = self._peak = 0
        self._refs: dict[int, _StorageRef] = {}
        # A finaliser may run at any place in any thread, so all it does is to append, which is atomic.
        self._dead: deque[weakref.ref[torch.UntypedStorage]] = deque()
        self._lock = threading.Lock()

    @property
    def allocated_bytes(self) -> int:
        """Return the bytes of the tensors that live now."""
        with self._lock:
            self._bury()
            return self._live

    @property
    def peak_bytes(self) -> int:
        """Return the most bytes that lived at one time since the last `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """Start the peak again from the bytes that live now."""
        with self._lock:
            self._bury()
            self._peak = self._live

    def adopt(self, what: torch.nn.Module | Iterable[Tensor]) -> None:
        """Count tensors that came to the device unseen, unless they count already.

        Raises:
            AccountedOutOfMemory: If not all fit under the cap; none of them counts then.
        """
        storages = {id(storage): storage for storage in map(_storage, _tensors(what)) if storage}
        with self._lock:
            self._bury()
            unseen = [storage for key, storage in storages.items() if key not in self._refs]
            self._check(sum(storage.nbytes() for storage in unseen))
            for storage in unseen:
                self._add(storage, id(storage), storage.nbytes())

    def release(self, what: torch.nn.Module | Iterable[Tensor]) -> None:
        """Stop counting tensors, which belong to the host from now on."""
        keys = {id(storage) for storage in map(_storage, _tensors(what)) if storage}
        with self._lock:
            self._bury()
            for ref in (self._refs.pop(key, None) for key in keys):
                self._live -= ref.num_bytes if ref else 0

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor counts."""
        storage = _storage(tensor)
        with self._lock:
            self._bury()
            return storage is not None and id(storage) in self._refs

    def __enter__(self) -> Account:
        if self not in _thread.entered:
            super().__enter__()
        _thread.entered.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _thread.entered.remove(self)
        if self not in _thread.entered:
            super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # This runs for each operation of a job, so it avoids every call that it can.
        if func is _ATTENTION or func is _UNFUSED_ATTENTION:
            return self._step_by_step(func, args, kwargs or {})
        result = func(*args, **kwargs) if kwargs else func(*args)
        is_moved = func is _TO_DEVICE or func is _TO_LAYOUT
        if type(result) is Tensor and result.is_cpu and result.layout is _STRIDED:
            self._see(result.untyped_storage(), args, kwargs, is_moved)
            return result
        for tensor in _tensors_in((result,)):
            storage = _storage(tensor)
            if storage is not None:
                self._see(storage, args, kwargs, is_moved)
        return result

    def _step_by_step(self, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation as the operations that it consists of, and watch them.

        Inference mode keeps it whole, and `decompose` is torch's only way to take it apart.
        """
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
        is_moved: bool,
    ) -> None:
        """Count the results of an operation on `args` and `kwargs` if they are on the device."""
        key = id(storage)
        with self._lock:
            if self._dead:
                self._bury()
            if key in self._refs:
                return
            # Nearly always the first argument is a tensor on the device, and there is no `out`.
            first = args[0] if args else None
            source = _storage(first) if type(first) is Tensor else None
            if kwargs or source is None or id(source) not in self._refs:
                given = _tensors_in((*args, *kwargs.values()) if kwargs else args)
                sources = {id(source) for source in map(_storage, given) if source}
                # `isdisjoint` would go through everything that counts.
                is_made_there = is_moved or not sources or any(source in self._refs for source in sources)
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
    """Return `tensor.cpu()`, and report it to the accounts that this thread has entered.

    Torch cannot tell the two parts of main memory apart, so that `.cpu()` alone would leave the tensor with
    the account. A tensor that shares its storage is copied, as it would be from a GPU.
    """
    found = tensor.cpu()
    for account in _thread.entered:
        if account.holds(found):
            if found.numel() * found.element_size() != found.untyped_storage().nbytes():
                found = found.clone()
            account.release([found])
    return found


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return a tensor's storage, or None if it does not lie in main memory as one piece."""
    if not tensor.is_cpu or tensor.layout is not _STRIDED:
        return None
    return tensor.untyped_storage()


def _tensors(what: torch.nn.Module | Iterable[Tensor]) -> Iterable[Tensor]:
    return [*what.parameters(), *what.buffers()] if isinstance(what, torch.nn.Module) else what


def _tensors_in(values: Iterable[Any]) -> Iterable[Tensor]:
    """Yield the tensors among an operation's arguments or results, including those in lists."""
    for value in values:
        kind = type(value)
        if kind is Tensor:
            yield value
        elif kind is list or kind is tuple:
            yield from _tensors_in(value)
        elif isinstance(value, Tensor):
            yield value


def _message(num_bytes: int, cap: int, live: int) -> str:
    """Return the error in the words of torch's allocators, so that one reader understands both."""
    return (
        f"CPU out of memory. Tried to allocate {_size(num_bytes)}. The accounting device has a total "
        f"capacity of {_size(cap)} of which {_size(max(0, cap - live))} is free. Of the allocated memory "
        f"{_size(live)} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )


def _size(num_bytes: int) -> str:
    if num_bytes < _MIB:
        return f"{num_bytes / 1024:.2f} KiB" if num_bytes >= 1024 else f"{num_bytes} bytes"
    return f"{num_bytes / _GIB:.2f} GiB" if num_bytes >= _GIB else f"{num_bytes / _MIB:.2f} MiB"
