"""LoRAs at work: a low-rank branch beside each layer, whose result is added to that of the layer.

The layers and their weights are not changed, so they may be of any type. The branches belong to the blocks,
so the store moves, streams and counts them as it does the weights.

`peft` needs support for each kind of quantised weights, and renames the parameters. diffusers' conversions
(0.42) assume the full model's width, know neither `alpha` nor the names of the kohya family, and expect every
layer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional

from diffusers_helper.errors import InputError
from diffusers_helper.files import file_sha256
from diffusers_helper.lora_choice import Choice
from diffusers_helper.models.sizes import block_lists
from diffusers_helper.setting import text_of
from diffusers_helper.weights.lora_files import LoraFile, Pair, count_keys

_NAME = "lora_branches"


class LowRankBranch(nn.Module):
    """A layer's branch of all weighted LoRAs: `down` (rank, inputs), `up` (outputs, rank), and biases."""

    def __init__(
        self, matrices: Sequence[tuple[int, Tensor, Tensor, Tensor | None]], factors: Sequence[float]
    ) -> None:
        super().__init__()
        self._lora_indices, downs, ups, biases = zip(*matrices, strict=True)
        present_biases = [bias for bias in biases if bias is not None]
        self._biased = [index for index, *_, bias in matrices if bias is not None]
        self._ranks = [len(down) for down in downs]
        self._factors = factors
        self.down = nn.Parameter(torch.cat(downs), requires_grad=False)
        self.up = nn.Parameter(torch.cat(ups, dim=1), requires_grad=False)
        self.bias = nn.Parameter(torch.stack(present_biases), requires_grad=False) if present_biases else None

    def forward(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        low = functional.linear(inputs.to(outputs.dtype), self.down.to(outputs.dtype))
        for index, low_part in zip(self._lora_indices, low.split(self._ranks, dim=-1), strict=True):
            if self._factors[index] != 1:
                low_part.mul_(self._factors[index])
        rows = outputs.reshape(-1, outputs.shape[-1])
        rows.addmm_(low.reshape(-1, low.shape[-1]), self.up.to(outputs.dtype).t())
        if self.bias is not None:
            # Plain numbers as factors, since a tensor of them would be copied to the card in each pass.
            weighted_biases = [
                self._factors[index] * bias for index, bias in zip(self._biased, self.bias, strict=True)
            ]
            rows += torch.stack(weighted_biases).sum(dim=0).to(outputs.dtype)
        return rows.view(outputs.shape)


class Loras:
    """The LoRAs of one job. As a context manager it takes them off the transformer at the end of the job."""

    def __init__(
        self, chosen: Sequence[tuple[Choice, LoraFile]], models_own: Sequence[LoraFile] = ()
    ) -> None:
        """Read the checksums of the chosen files. InputError is raised if one differs from the request's.

        `models_own` are those of the model, for which the checksums of its weights stand.
        """
        self.chosen = (*chosen, *((Choice(lora.name), lora) for lora in models_own))
        self._choices = tuple(
            Choice(lora.name, choice.weight, _checked_sum(choice, lora)) for choice, lora in chosen
        )
        self._factors = [1.0] * len(self.chosen)
        self._hooks: list[Any] = []
        self._hosts: list[nn.Module] = []

    @property
    def text(self) -> str:
        """The text of the setting `lora` with names instead of paths and with all checksums."""
        return text_of(self._choices)

    @property
    def origin(self) -> dict[str, str]:
        facts = ", ".join(f"{choice.sha256}:{choice.weight:.15g}" for choice in self._choices)
        return {"lora": facts} if facts else {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for host in self._hosts:
            delattr(host, _NAME)
        self._hooks.clear()
        self._hosts.clear()

    def attach(self, network: nn.Module, dtype: torch.dtype, expert: str = "") -> list[str]:
        """Add the branches to a transformer, in the type that it computes in, and describe each LoRA.

        `expert` names the component if the model has two transformers. If too little of a file fits, or it
        cannot be read, InputError is raised, and nothing is added.
        """
        if not self.chosen:
            return []
        layers = {name: module for name, module in network.named_modules() if hasattr(module, "in_features")}
        sizes: dict[str, tuple[int, int]] = {
            name: (int(module.out_features), int(module.in_features))  # pyright: ignore[reportArgumentType]
            for name, module in layers.items()
        }
        matrices_by_layer: dict[str, list[tuple[int, Tensor, Tensor, Tensor | None]]] = {}
        notes: list[str] = []
        for index, (choice, lora) in enumerate(self.chosen):
            if expert and not lora.suits(expert):
                continue
            pairs = lora.fitting(sizes)
            for name, down, up, bias in _read_matrices(lora, pairs, sizes):
                weighted_bias = None if bias is None else (bias * choice.weight).to(dtype)
                entry = index, down.to(dtype), (up * choice.weight).to(dtype), weighted_bias
                matrices_by_layer.setdefault(name, []).append(entry)
            applied = f"{count_keys(pairs)} of {lora.keys} keys applied"
            if index < len(self._choices):
                notes.append(f"LoRA {lora.name}, weight {choice.weight:g}: {applied}.")
        with torch.inference_mode(False):  # the `.data` of an inference tensor could not be replaced later
            for name, matrices in matrices_by_layer.items():
                self._add(network, name, layers[name], LowRankBranch(matrices, self._factors))
        return notes

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Give LoRAs other weights from now on, by their names; all others get those of the request."""
        for index, (choice, _) in enumerate(self.chosen):
            matching = [weight for name, weight in weights.items() if choice.is_called(name)]
            self._factors[index] = matching[-1] / choice.weight if matching else 1.0

    def _add(self, network: nn.Module, name: str, layer: nn.Module, branch: LowRankBranch) -> None:
        group, _, rest_of_name = name.partition(".")
        is_block = group in block_lists("transformer", type(network).__name__)
        host = network.get_submodule(f"{group}.{rest_of_name.partition('.')[0]}") if is_block else network
        if not hasattr(host, _NAME):
            host.add_module(_NAME, nn.ModuleList())
            self._hosts.append(host)
        getattr(host, _NAME).append(branch)
        self._hooks.append(layer.register_forward_hook(lambda _, inputs, outputs: branch(inputs[0], outputs)))


def _read_matrices(
    lora: LoraFile, pairs: Iterable[Pair], sizes: dict[str, tuple[int, int]]
) -> Iterable[tuple[str, Tensor, Tensor, Tensor | None]]:
    """Yield the matrices for each layer in fp32, with the LoRA's own scale, and the change of its bias."""
    with safe_open(lora.path, "pt") as file:
        for pair in pairs:
            tensors = {key: file.get_tensor(key).float() for key in pair.keys}
            down, up, bias = tensors[pair.down], tensors[pair.up], tensors.get(pair.bias)
            up = up * (tensors[pair.alpha].item() / pair.rank if pair.alpha else pair.scale)
            if not all(tensor.isfinite().all() for tensor in (down, up, *tensors.values())):
                raise InputError(
                    f"LoRA {lora.name} holds values that are not finite numbers, as in {pair.down}.",
                    "Download it again, or choose another file.",
                    setting="lora",
                )
            if pair.target.swaps_halves:
                up = torch.cat(up.chunk(2)[::-1])
                bias = None if bias is None else torch.cat(bias.chunk(2)[::-1])
            rows = [sizes[name][0] for name in pair.target.layers]
            biases = [None] * len(rows) if bias is None else bias.split(rows)
            yield from zip(pair.target.layers, [down] * len(rows), up.split(rows), biases, strict=True)


def _checked_sum(choice: Choice, lora: LoraFile) -> str:
    try:
        checksum = file_sha256(lora.path)
    except OSError as error:
        raise InputError(
            f"LoRA {lora.name} cannot be read ({error.strerror}).", "Check the disk.", setting="lora"
        ) from error
    if choice.sha256 not in ("", checksum):
        raise InputError(
            f"LoRA {lora.name} has another content than the one that the video was made with (its checksum "
            f"begins with {checksum[:8]}; expected {choice.sha256[:8]}).",
            "Use the file of that time, or choose this one anew.",
            setting="lora",
        )
    return checksum
