"""Main memory as a device, with an account of the bytes of live tensors, for machines without a GPU.

With it, plans, caps and peaks mean the same as on a GPU. It counts each storage once, from the operation that
creates it until its last tensor is deleted, without what a kernel frees within one operation.

Torch does not say how much main memory its tensors take. So a dispatch mode watches each operation, as torch
documents under "Extending PyTorch", which costs about 6 microseconds (`benchmarks/accounting.py`). A
`TorchFunctionMode`, whose name is public, sees a Python function as one call even if it creates several
tensors.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_STRIDED = torch.strided
# Attention without a fused kernel keeps a matrix of scores between its steps. The first of these operations
# then calls the second, which has no public name.
_ATTENTION = _ATEN.scaled_dot_product_attention.default
_UNFUSED_ATTENTION = _ATEN._scaled_dot_product_attention_math.default
_TO_DEVICE, _TO_LAYOUT = _ATEN.to.device, _ATEN.to.dtype_layout

# run(key, compute) returns the tensor that `compute` makes. Computations with one key have the same shapes.
Repeat = Callable[[Hashable, Callable[[], Tensor]], Tensor]


class _StorageRef(weakref.ref[torch.UntypedStorage]):
    __slots__ = ("key", "num_bytes")
    key: int
    num_bytes: int


class _Thread(threading.local):
    # The devices that a thread has entered, each as many times as it was entered

    def __init__(self) -> None:
        self.entered: list[Device] = []


_thread = _Thread()


class Device(TorchDispatchMode):
    """Main memory as a device, with an account of the tensors that a GPU would hold. Figures are in bytes.

    A tensor counts as on the device if it was adopted, if an operation created it from a tensor on the device
    or from no tensor, or if `to` copied it. All other tensors belong to the host. The account sees operations
    only within `with device:`, which may be nested, and only on the thread that entered it, since a dispatch
    mode belongs to its thread. Copies by other threads have to be adopted. Any thread may read the figures.
    """

    has_gpu = False
    cap_bytes: int | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True, by default, keeps torch's compiler out of each call, which takes longer than the account.
        return False

    def __init__(self) -> None:
        super().__init__()
        self.torch_device = torch.device("cpu")
        self._live = self._peak = 0
        self._refs: dict[int, _StorageRef] = {}
        # A finaliser may run at any point in any thread, so it only appends to this queue, which is atomic.
        self._freed: deque[weakref.ref[torch.UntypedStorage]] = deque()
        self._lock = threading.Lock()
        # The growth of memory in a repeated computation, by its key and the growth and rest of its first run.
        self._growths: dict[Hashable | None, int] = {}

    @property
    def total_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def allocated_bytes(self) -> int:
        with self._lock:
            self._discard_freed()
            return self._live

    def reserved_bytes(self) -> int:
        """Count the memory that torch holds, with the unused memory of its allocator."""
        return self.allocated_bytes()

    def peak_bytes(self) -> int:
        return self._peak

    def peak_reserved_bytes(self) -> int:
        return self._peak

    def reset_peak(self) -> None:
        with self._lock:
            self._discard_freed()
            self._peak = self._live

    def _raise_peak(self, num_bytes: int) -> None:
        with self._lock:
            self._peak = max(self._peak, num_bytes)

    def free_bytes(self) -> int:
        """Count what this process can still allocate under the cap, or of all memory without a cap."""
        cap = self.total_bytes if self.cap_bytes is None else self.cap_bytes
        return max(0, cap - self.allocated_bytes())

    def limit(self, cap_bytes: int | None) -> None:
        """Set the cap, or remove it if None. An allocation beyond it raises `torch.OutOfMemoryError`."""
        self.cap_bytes = cap_bytes

    def empty_cache(self) -> None:
        """Give the allocator's unused memory back to the driver; there is none here."""

    def adopt(self, tensors: torch.nn.Module | Iterable[Tensor]) -> None:
        storages = {id(storage): storage for storage in map(_storage, _tensors(tensors)) if storage}
        with self._lock:
            self._discard_freed()
            unseen = [storage for key, storage in storages.items() if key not in self._refs]
            self._check_cap(sum(storage.nbytes() for storage in unseen))
            for storage in unseen:
                self._count(storage, id(storage), storage.nbytes())

    def release(self, tensors: torch.nn.Module | Iterable[Tensor]) -> None:
        keys = {id(storage) for storage in map(_storage, _tensors(tensors)) if storage}
        with self._lock:
            self._discard_freed()
            for ref in (self._refs.pop(key, None) for key in keys):
                self._live -= ref.num_bytes if ref else 0

    def holds(self, tensor: Tensor) -> bool:
        storage = _storage(tensor)
        with self._lock:
            self._discard_freed()
            return storage is not None and id(storage) in self._refs

    def __enter__(self) -> Self:
        if self not in _thread.entered:
            super().__enter__()
        _thread.entered.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _thread.entered.remove(self)
        if self not in _thread.entered:
            super().__exit__(*error)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing on this thread within the context, if no other mode was entered since."""
        is_entered = self in _thread.entered
        if is_entered:
            super().__exit__(None, None, None)
        try:
            yield
        finally:
            if is_entered:
                super().__enter__()

    def repeater(self) -> Repeat:
        """Make a runner of repeated computations, which stops counting tensors once their peak is known.

        Counting costs an eighth of a forward pass of the demo model, so each kind of computation, which has a
        key, is counted twice: the first one may leave tensors behind for the later ones, and the second one
        shows by how much memory grows. The second count is left out if an earlier runner has counted a kind
        whose first computation grew and left behind as much. Whatever would exceed the cap is counted again.
        """
        first_runs: dict[Hashable, Hashable] = {}

        def run(key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
            allocated_before = self.allocated_bytes()
            growth = self._growths.get(first_runs.get(key))
            if growth is None or (self.cap_bytes is not None and allocated_before + growth > self.cap_bytes):
                previous_peak = self.peak_bytes()
                self.reset_peak()
                try:
                    result = compute()
                    measured_growth = self.peak_bytes() - allocated_before
                finally:
                    self._raise_peak(previous_peak)
                if key in first_runs:
                    self._growths[first_runs[key]] = measured_growth
                else:
                    first_runs[key] = key, measured_growth, self.allocated_bytes() - allocated_before
                return result
            with self.paused():
                result = compute()
            self._raise_peak(allocated_before + growth)
            self.adopt([result])
            return result

        return run

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # This runs for each operation of a job, so it avoids every call that it can.
        if func is _ATTENTION or func is _UNFUSED_ATTENTION:
            return self._decompose(func, args, kwargs or {})
        result = func(*args, **kwargs) if kwargs else func(*args)
        is_copy = func is _TO_DEVICE or func is _TO_LAYOUT
        if type(result) is Tensor and result.is_cpu and result.layout is _STRIDED:
            self._count_result(result.untyped_storage(), args, kwargs, is_copy)
            return result
        for storage in map(_storage, _tensors_in((result,))):
            if storage is not None:
                self._count_result(storage, args, kwargs, is_copy)
        return result

    def _decompose(self, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        # In inference mode, torch calls attention as one operation unless it is decomposed here.
        super().__enter__()
        try:
            return operation.decompose(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)

    def _count_result(
        self,
        storage: torch.UntypedStorage,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        is_copy: bool,
    ) -> None:
        key = id(storage)
        with self._lock:
            if self._freed:
                self._discard_freed()
            if key in self._refs:
                return
            # Nearly always the first argument is a tensor on the device, and there is no `out`.
            first = args[0] if args else None
            source = _storage(first) if type(first) is Tensor else None
            if kwargs or source is None or id(source) not in self._refs:
                inputs = _tensors_in((*args, *kwargs.values()) if kwargs else args)
                sources = {id(source) for source in map(_storage, inputs) if source}
                # `isdisjoint` would iterate over all counted storages.
                is_on_device = is_copy or not sources or any(source in self._refs for source in sources)
                if key in sources or not is_on_device:
                    return
            num_bytes = storage.nbytes()
            if self.cap_bytes is not None:
                self._check_cap(num_bytes)
            self._count(storage, key, num_bytes)

    def _check_cap(self, num_bytes: int) -> None:
        cap, live = self.cap_bytes, self._live
        if cap is not None and live + num_bytes > cap:
            # In the wording of torch's allocators, which `read_out_of_memory` can parse
            raise torch.OutOfMemoryError(
                f"CPU out of memory. Tried to allocate {num_bytes} bytes. The accounting device has a total "
                f"capacity of {cap} bytes of which {max(0, cap - live)} bytes is free. Of the allocated "
                f"memory {live} bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
                "unallocated."
            )

    def _count(self, storage: torch.UntypedStorage, key: int, num_bytes: int) -> None:
        ref = _StorageRef(storage, self._freed.append)
        ref.key = key
        ref.num_bytes = num_bytes
        self._refs[key] = ref
        self._live += num_bytes
        if self._live > self._peak:
            self._peak = self._live

    def _discard_freed(self) -> None:
        while self._freed:
            ref = self._freed.popleft()
            assert isinstance(ref, _StorageRef)
            # A released storage is no longer counted, and its `id` may by now belong to another one.
            if self._refs.get(ref.key) is ref:
                del self._refs[ref.key]
                self._live -= ref.num_bytes


def to_host(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU, and release it from the devices that this thread has entered.

    For torch, this device is the same as the host, so after `.cpu()` alone the tensor would still be
    counted. A tensor that is only a part of its storage is copied, as it would be from a GPU.
    """
    host_tensor = tensor.cpu()
    for device in _thread.entered:
        if device.holds(host_tensor):
            if host_tensor.numel() * host_tensor.element_size() != host_tensor.untyped_storage().nbytes():
                host_tensor = host_tensor.clone()
            device.release([host_tensor])
    return host_tensor


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    return tensor.untyped_storage() if (tensor.is_cpu and tensor.layout is _STRIDED) else None


def _tensors(source: torch.nn.Module | Iterable[Tensor]) -> Iterable[Tensor]:
    return [*source.parameters(), *source.buffers()] if isinstance(source, torch.nn.Module) else source


def _tensors_in(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        kind = type(value)
        if kind is Tensor:
            yield value
        elif kind is list or kind is tuple:
            yield from _tensors_in(value)
        elif isinstance(value, Tensor):
            yield value
