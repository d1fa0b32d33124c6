"""The configuration: checks, near matches, files; and that its options are those of the C program."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import program
import rosatune
from rosatune import RosaConfig
from rosatune.config import ALL, chosen


def other(name: str, *choices: str) -> str:
    """The choice that is not the default."""
    return next(choice for choice in choices if choice != getattr(RosaConfig(), name))


OTHERS = dict(window=64, sinks=3, layers=(1, 3), first_global_layers=1, seen=8, source="embeddings+layer 3",
              delay=100, chain=2, source_seed=7, fusion="pre", qk="shared", e_start=0.5, gain=not RosaConfig().gain,
              gate=not RosaConfig().gate, units=0.5, v_start=other("v_start", "identity", "xavier"),
              v_from=other("v_from", "embeddings", "layer"),
              v_grad=other("v_grad", "straight", "sigmoid"), bits=4, policy="literal", fold=False, max_match=7,
              qk_grad="flips", credit="route", key_credit="destination", slope=2.0, suffix=0.5, explore=0.25,
              flip_share=0.5)  # fmt: skip


def test_every_option_has_a_value_that_is_not_its_default() -> None:
    assert list(OTHERS) == [field.name for field in dataclasses.fields(RosaConfig)]
    config = RosaConfig(**OTHERS)
    assert all(getattr(config, name) == value != getattr(RosaConfig(), name) for name, value in OTHERS.items())
    assert all(f"``{name}``" in inspect.getdoc(RosaConfig) for name in OTHERS)
    assert list(inspect.signature(RosaConfig).parameters) == list(OTHERS)


def test_the_options_are_those_of_the_program() -> None:
    """Names, defaults, choices and ranges, as `rosatune adapter options` prints them."""
    rows = json.loads(program.succeed("adapter", "options", "--json"))["options"]
    assert {row["name"] for row in rows} == set(OTHERS)
    for row in rows:
        name = row["name"]
        assert getattr(RosaConfig(), name) == row["default"], name
        assert getattr(RosaConfig.paper(), name) == row["paper"], name
        if row["type"] == "choice":
            for word in row["choices"]:
                assert getattr(RosaConfig(**{name: word}), name) == word
            with pytest.raises(ValueError, match=", ".join(map(repr, row["choices"]))):
                RosaConfig(**{name: "nothing"})
        elif row["type"] == "source":
            assert RosaConfig(**{name: "tokens+layer 2"}).source == "tokens+layer 2"
        elif row["type"] == "layers":
            assert RosaConfig(**{name: [2, 0]}).layers == (0, 2)
        elif row["type"] == "bool":
            assert RosaConfig(**{name: False}) != RosaConfig(**{name: True})
        else:
            # max_match 0 is None here; sinks need a window, and a window larger than they are
            least = 1 if name == "max_match" else row.get("least", row.get("above"))
            step = 1 if row["type"] == "size" else 0.001
            good, bad = [row["most"], least if "least" in row else least + step], [row["most"] + step, least - step]
            for value in good:
                value = int(value) if row["type"] == "size" else value
                assert getattr(RosaConfig(**{name: value}), name) == value
            for value in bad if "least" in row else [*bad, least]:
                with pytest.raises(ValueError, match=name):
                    RosaConfig(**{name: int(value) if row["type"] == "size" else value})


@pytest.mark.parametrize(
    "options, kind, words",
    [
        (dict(windw=8), TypeError, "RosaConfig has no option 'windw'; did you mean 'window'?"),
        (dict(no_such_thing=8), TypeError, "RosaConfig has no option 'no_such_thing'; its options are window, sinks"),
        (dict(window=8.0), TypeError, "window is 8.0; give a whole number"),
        (dict(window=True), TypeError, "window is True; give a whole number"),
        (dict(bits=17), ValueError, "bits is 17; give a whole number from 1 to 16"),
        (dict(fold="no"), TypeError, "fold is 'no'; give True or False"),
        (dict(policy=None), ValueError, "policy is None; give one of 'readable'"),
        (dict(max_match=0), ValueError, "max_match (None: no limit) is 0"),
        (dict(slope="1"), TypeError, "slope is '1'; give a number"),
        (dict(explore=math.nan), ValueError, "explore is nan; give a number from 0 to 1"),
        (dict(flip_share=0), ValueError, "flip_share is 0; give a number above 0 to 1"),
        (dict(layers="some"), ValueError, "layers is 'some'; give 'all' or the numbers of layers"),
        (dict(layers=3), TypeError, "layers is 3; give 'all' or the numbers of layers"),
        (dict(layers=[2, 2]), ValueError, "layers names a layer twice"),
        (dict(layers=[0], first_global_layers=1), ValueError, "layers names layer 0, but first_global_layers=1"),
        (dict(window=0, sinks=2), ValueError, "sinks is 2, but window=0 is global attention"),
        (dict(source="token"), ValueError, "source is 'token'; choose from 'own', 'tokens', 'embeddings' and 'layer N'"),
        (dict(source="layer x"), ValueError, "source is 'layer x'; choose from"),
        (dict(source=""), ValueError, "source is ''; choose from"),
        (dict(source="own+own"), ValueError, "name each source once"),
        (dict(source="own+tokens+embeddings+layer 1+layer 2"), ValueError, "a layer has up to 4 sources"),
        (dict(source=3), TypeError, "source is 3; give a string"),
        (dict(delay=5, window=8), ValueError, "delay is 5 beside a window of 8: attention still sees"),
        (dict(delay=-1), ValueError, "delay (None: the window) is -1"),
        (dict(chain=0), ValueError, "chain is 0; give a whole number from 1 to 16"),
        (dict(units=-1), ValueError, "units is -1; give a number from 0"),
    ],
)
def test_values_that_make_no_sense(options: dict[str, Any], kind: Any, words: str) -> None:
    with pytest.raises(kind) as raised:
        RosaConfig(**options)
    assert words in str(raised.value)
    with pytest.raises(kind):
        RosaConfig().replace(**options)


def test_options_need_names() -> None:
    with pytest.raises(TypeError, match="given 4 without a name"):
        RosaConfig(4)  # type: ignore[call-overload]


def test_a_configuration_is_a_value() -> None:
    config = RosaConfig(**OTHERS)
    assert config == RosaConfig(**OTHERS) and hash(config) == hash(RosaConfig(**OTHERS))
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
    assert config.replace(bits=8) == RosaConfig(**{**OTHERS, "bits": 8}) != config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.bits = 8  # type: ignore[misc]
    assert RosaConfig(policy="READABLE", layers=[3, 1]) == RosaConfig(layers=(1, 3))
    assert RosaConfig(source="Tokens + layer  2").source == "tokens+layer 2"
    assert config.part("retrieval") == dict(bits=4, policy="literal", fold=False, max_match=7)


def test_the_paper() -> None:
    paper = RosaConfig.paper(bits=4)
    assert paper == RosaConfig(source="own", delay=0, chain=1, gain=False, gate=False, units=0, v_start="xavier",
                               v_from="layer", v_grad="sigmoid", sinks=0, bits=4)  # fmt: skip
    with pytest.raises(TypeError, match="RosaConfig.paper has no option 'bit'; did you mean 'bits'"):
        RosaConfig.paper(bit=4)


def test_sources() -> None:
    config = RosaConfig(source="tokens+own+layer 12", chain=3, qk="aligned", window=16, delay=None)
    tokens, own, layer = config.sources
    assert (tokens.name, own.name, layer.name) == ("tokens", "own", "layer 12") and layer.layer == 12
    assert [config.links(source) for source in config.sources] == [3, 1, 1]
    assert [config.replace(qk="shared").links(source) for source in config.sources] == [3, 3, 3]
    assert not layer.serves(11) and layer.serves(12) and tokens.serves(0)
    assert config.delay_steps == 16 and config.replace(delay=20).delay_steps == 20
    assert config.replace(window=0).delay_steps == 0 and config.replace(delay=0).delay_steps == 0


def test_sinks_belong_to_a_window() -> None:
    assert RosaConfig(window=0).sinks == 0 and RosaConfig().replace(window=0).sinks == 0


def test_objects_names_and_both() -> None:
    config = RosaConfig(bits=4)
    assert chosen("f", None, {}) == RosaConfig()
    assert chosen("f", config, {}) is config
    assert chosen("f", None, dict(bits=4)) == config
    assert chosen("f", config, dict(fold=False)) == RosaConfig(bits=4, fold=False)
    with pytest.raises(TypeError, match="f was given 4 for config; give a RosaConfig, or name the option: bits="):
        chosen("f", 4, {}, ("retrieval",))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="f does not use the option 'window'; its options are bits, policy"):
        chosen("f", None, dict(window=4), ("retrieval",))
    with pytest.raises(TypeError, match="f has no option 'thread'; did you mean 'threads'"):
        chosen("f", None, dict(thread=4), ("retrieval",), ("threads",))


# -------------------------------------------------------------------------------------------------------------- files


def test_dictionaries_and_files(tmp_path: Path) -> None:
    config = RosaConfig(**OTHERS)
    assert RosaConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert set(config.to_dict()) == set(config.part(*ALL))
    config.save(tmp_path / "a" / "b", note="kept")
    assert RosaConfig.load(tmp_path / "a" / "b") == config
    file = tmp_path / "a" / "b" / "adapter_config.json"
    assert RosaConfig.load(file) == config
    written = json.loads(file.read_text())
    assert written["note"] == "kept" and written["rosatune_version"] == rosatune.__version__
    # a file that lacks an option
    del written["options"]["explore"]
    file.write_text(json.dumps(written))
    assert RosaConfig.load(file) == config.replace(explore=0.0)
    # a file from before there were sources
    file.write_text(json.dumps({"format": 1, "options": {"bits": 4, "window": 64}}))
    assert RosaConfig.load(file) == RosaConfig.paper(bits=4, window=64)
    assert RosaConfig.from_dict({"bits": 4, "window": 64}) == RosaConfig.paper(bits=4, window=64)
    file.write_text(json.dumps({"format": 2, "options": {"bits": 4, "window": 64}}))
    assert RosaConfig.load(file) == RosaConfig(bits=4, window=64, v_from="layer")
    # and one from before values could be made of embeddings
    assert RosaConfig.from_dict({"source": "tokens"}) == RosaConfig(v_from="layer")


def test_what_a_file_replaces(tmp_path: Path) -> None:
    """As the library's own files: links are followed, permissions stay, pipes and folders are refused."""
    file, real = tmp_path / "adapter_config.json", tmp_path / "elsewhere" / "real.json"
    real.parent.mkdir()
    file.symlink_to("elsewhere/real.json")  # which is not there yet
    RosaConfig(window=32).save(tmp_path)
    assert file.is_symlink() and RosaConfig.load(tmp_path).window == 32 and "options" in real.read_text()
    mask = os.umask(0)
    os.umask(mask)
    assert real.stat().st_mode & 0o777 == 0o666 & ~mask
    for mode in (0o600, 0o640, 0o444):
        real.chmod(mode)
        before = real.stat().st_ino
        RosaConfig(window=mode).save(tmp_path)
        assert file.is_symlink() and RosaConfig.load(tmp_path).window == mode
        assert real.stat().st_mode & 0o777 == mode and real.stat().st_ino != before
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(rosatune.FileError, match="cannot write .*adapter_config.json: it is a pipe or a device"):
        RosaConfig().save(tmp_path)
    assert file.is_fifo()
    file.unlink()
    file.mkdir()
    with pytest.raises(rosatune.FileError, match="cannot write .*adapter_config.json: it is a folder"):
        RosaConfig().save(tmp_path)
    file.rmdir()
    file.symlink_to(file.name)
    with pytest.raises(rosatune.FileError, match="cannot write .*: Too many levels of symbolic links"):
        RosaConfig().save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "elsewhere"]
    assert [path.name for path in real.parent.iterdir()] == ["real.json"]


@pytest.mark.parametrize("version", (1, 2))
def test_missing_options_keep_their_meaning(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder from before the seen-token head has none, also if new adapters should have one."""
    init = inspect.unwrap(RosaConfig.__init__)
    defaults = [64 if name == "seen" else getattr(RosaConfig(), name) for name in OTHERS]
    monkeypatch.setattr(init, "__defaults__", tuple(defaults))
    assert RosaConfig().seen == 64
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"format": version, "options": {"bits": 4, "window": 64}}))
    assert RosaConfig.load(file).seen == 0


def test_files_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    with pytest.raises(rosatune.AdapterError, match="no such file; name a folder"):
        RosaConfig.load(tmp_path)
    for content, words in (
        ({"format": 1, "options": {"windw": 4}}, "option 'windw' is not known to rosatune .* did you mean 'window'"),
        ({"format": 2, "options": {"decay": 4}}, "'decay' is not known .* update rosatune if a later version wrote it"),
        ({"format": 1, "options": {"bits": 0}}, "adapter_config.json: bits is 0"),
        ({"format": 3, "options": {}}, "format 3.*update"),
        ({"peft_type": "LORA", "r": 8}, "an adapter of PEFT .LORA.*peft.PeftModel.from_pretrained"),
    ):
        file.write_text(json.dumps(content))
        with pytest.raises(rosatune.AdapterError, match=words):
            RosaConfig.load(tmp_path)
