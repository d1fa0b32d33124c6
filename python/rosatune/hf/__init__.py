"""ROSA adapters for Hugging Face models.

>>> from transformers import AutoModelForCausalLM
>>> import rosatune.hf
>>> model = AutoModelForCausalLM.from_pretrained(folder)          # doctest: +SKIP
>>> rosatune.hf.attach(model, window=2048, sinks=4)               # doctest: +SKIP

The model's attention then sees a window, and every layer has an adapter that reads from the whole past. Options are
those of :class:`rosatune.RosaConfig`. ``model.generate``, ``Trainer``, gradient checkpointing and ``torchrun`` work as
before. :func:`detach` restores the model.

The files:

- ``attach.py`` adds adapters, removes them, and chooses what is trained;
- ``patch.py`` is what a patched model computes: a hook before the decoder stack and a class for its layers;
- ``masks.py`` is the window with sinks, for each attention implementation of transformers;
- ``cache.py`` keeps keys and values of the window, value bits, and the retrieval state;
- ``recorded.py`` replays single steps as CUDA graphs, so that generation does not launch kernels one by one;
- ``compiled.py`` compiles layers one by one, for training;
- ``seen.py`` adds the seen-token head (option ``seen``) to the model's logits;
- ``ahead.py`` looks up places ahead of the model, in a collator or beside a loop;
- ``scales.py`` measures how large the input of each layer is;
- ``files.py`` saves and loads adapters;
- ``pointer.py`` adds a pointer (:class:`rosatune.Pointer`) to the logits of any causal model, ``fit.py`` fits one;
- ``recall.py`` is :func:`rosatune.recall`, with ``arrange.py`` for its conditions and ``reading.py`` for texts.

Llama, Qwen2 and Qwen3 classes are supported (SmolLM2 is a Llama, Qwen2.5 a Qwen2).
"""

from . import scales
from .ahead import LookUpCollator, prefetch
from .attach import adapters, attach, attachment, detach, parameter_groups, set_stage
from .compiled import compile_layers
from .files import AdapterError, from_pretrained, load_adapter, save_adapter
from .fit import fit_pointer
from .pointer import PointerLogitsProcessor, attach_pointer, detach_pointer, pointer_head, pointer_of
from .recorded import recorded

__all__ = [
    "AdapterError",
    "LookUpCollator",
    "PointerLogitsProcessor",
    "adapters",
    "attach",
    "attach_pointer",
    "attachment",
    "compile_layers",
    "detach",
    "detach_pointer",
    "fit_pointer",
    "from_pretrained",
    "load_adapter",
    "parameter_groups",
    "pointer_head",
    "pointer_of",
    "prefetch",
    "recorded",
    "save_adapter",
    "scales",
    "set_stage",
]
