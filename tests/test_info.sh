#!/usr/bin/env bash
# `rosatune info` from outside: what it says of tiny models, in words and in JSON, and what it refuses. The first
# argument is the program's path. The models are written here, in Python without NumPy.

# shellcheck disable=SC2015 # problem may follow a failed grep
# shellcheck source=tests/command.bash
command -v python3 >/dev/null || { echo "python3 is needed for this test" >&2; exit 77; }
command=info
. "${0%/*}/command.bash"

afterwards() {
	[ -z "$pattern" ] || [ ! -s out ] || problem "half an answer on stdout: $*"
}

cat >write.py <<'PYTHON'
"""A model of 2 layers of width 32, 4 heads of 8 of which 2 for keys, 64 wide inside, 40 tokens; its adapter."""
import json, os, struct

LAYER = {"attn_norm": ("input_layernorm", [32]), "ffn_norm": ("post_attention_layernorm", [32]),
         "attn_q": ("self_attn.q_proj", [32, 32]), "attn_k": ("self_attn.k_proj", [16, 32]),
         "attn_v": ("self_attn.v_proj", [16, 32]), "attn_output": ("self_attn.o_proj", [32, 32]),
         "ffn_gate": ("mlp.gate_proj", [64, 32]), "ffn_up": ("mlp.up_proj", [64, 32]),
         "ffn_down": ("mlp.down_proj", [32, 64])}

def numbers(shape):
    count = 1
    for size in shape:
        count *= size
    return count

def tensors(gguf):
    all = {"token_embd" if gguf else "model.embed_tokens": [40, 32], "output_norm" if gguf else "model.norm": [32]}
    for layer in range(2):
        for ours, (theirs, shape) in LAYER.items():
            all[f"blk.{layer}.{ours}" if gguf else f"model.layers.{layer}.{theirs}"] = shape
    return {name + ".weight": shape for name, shape in all.items()}

def text(words):
    return struct.pack("<Q", len(words)) + words.encode()

def write_gguf(path, times=1, kind=(8, 32, 34)):
    """`times` as wide; `kind` is the format of matrices, Q8_0: its number, the numbers of a block, their bytes."""
    keys = {"block_count": 2, "embedding_length": 32 * times, "feed_forward_length": 64 * times, "attention.head_count": 4,
            "attention.head_count_kv": 2, "context_length": 128}
    entries = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    entries += [text("llama." + key) + struct.pack("<II", 4, value) for key, value in keys.items()]
    entries += [text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5)]
    infos, data = [], b""
    for name, shape in tensors(True).items():
        large = len(shape) == 2
        shape = [size if size == 40 else size * times for size in shape]
        size = numbers(shape) // kind[1] * kind[2] if large else numbers(shape) * 4
        data += b"\0" * (-len(data) % 32)
        infos.append(text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape[::-1])
                     + struct.pack("<IQ", kind[0] if large else 0, len(data)))
        data += b"\0" * size
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries)) + b"".join(entries) + b"".join(infos)
    open(path, "wb").write(head + b"\0" * (-len(head) % 32) + data)

def write_safetensors(path, shapes, kind="F32", metadata=None):
    header, at, width = {}, 0, 4 if kind == "F32" else 2
    if metadata:
        header["__metadata__"] = metadata
    for name, shape in shapes.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + width * numbers(shape)]}
        at += width * numbers(shape)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    open(path, "wb").write(struct.pack("<Q", len(head)) + head + b"\0" * at)

def write_folder(path):
    os.makedirs(path)
    config = dict(model_type="llama", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  intermediate_size=64, vocab_size=40, rms_norm_eps=1e-5, tie_word_embeddings=True, eos_token_id=[3, 5])
    json.dump(config, open(path + "/config.json", "w"))
    write_safetensors(path + "/model.safetensors", tensors(False), "BF16")

def write_adapter(path):
    os.makedirs(path)
    parts = {"q_proj.weight": [32, 32], "k_proj.weight": [32, 32], "v_proj.weight": [32, 32],
             "out_proj.weight": [32, 32], "e0": [32], "e1": [32], "a0": [32]}
    shapes = {f"layers.1.{name}": shape for name, shape in parts.items()}
    write_safetensors(path + "/adapter_model.safetensors", shapes, metadata={"tensors": "abc"})
    options = dict(window=16, sinks=4, bits=8, fusion="pre", layers=[1], first_global_layers=1)
    base = dict(model_type="llama", hidden_size=32, num_hidden_layers=2)
    json.dump(dict(format=1, rosatune_version="0", base_model=base, options=options, tensors="abc"),
              open(path + "/adapter_config.json", "w"))

write_gguf("tiny.gguf")
write_gguf("rounded.gguf", 8, (12, 256, 144))  # Q4_K
write_gguf('odd "name".gguf')
write_gguf('evil\x1b]0;title\x07\x9b31m.gguf')
write_folder("tiny")
write_adapter("adapter")
PYTHON
python3 write.py || exit 1

# ------------------------------------------------------------------------------------------------------------- in words

# A name is shown and not obeyed, on a terminal or not.
for more in "" --json; do
	# shellcheck disable=SC2086
	check 0 "" evil*.gguf $more
	checks=$((checks + 1))
	[ "$(tr -d '[:print:]\n' <out | wc -c)" = 0 ] || problem "control characters in the output of info $more"
done
check 0 "" evil*.gguf
says '^evil\\x1b\]0;title\\a\\u{9b}31m.gguf$'

check 0 "" --help
says "usage: rosatune info PATH"
check 0 "" tiny.gguf
says "architecture  llama, GGUF, 1 file"
says "layers        2 of width 32, feed-forward 64"
says "attention     4 heads of 8, 2 of keys and values"
says "positions     128 trained, rotary base 10000"
says "vocabulary    40 tokens, the embedding is the head too"
says "parameters    19,872 (19.9 k)"
says "Q8_0            15          19,712    20.5 KiB"
grep -q "16 bits" out && problem "info says that activations of a Q8_0 model are rounded"
says "F32              5             160       640 B"
says "source        tokens, delay 2,048, 4 reads per layer"
says "strength      gain by match length, gate, 0.3 units of the residual stream"
says "parameters    4,754 (4.75 k), 23.9 % of the model's"
says "1,048,576 global"
says "^Window 2,048, 4 sinks"
check 0 "" --contexts 1k,2k tiny.gguf --tensors --bits 4 --window 100 --sinks 3
says "blk.1.ffn_down.weight  *Q8_0  *\[32, 64\]  *2.12 KiB"
says "source        own, delay 0, 1 read per layer"
says "symbols       4 bits per symbol, 8 routes"
says "strength      none"
says "^    1,024 global"
says "^Window 100, 3 sinks"
says "an index of 182 bytes"
says "and 16 bytes of value bits; keys and values of all layers would take 128 in"

# -------------------------------------------------------------------------------------------------------------- in JSON

check 0 "" tiny.gguf --json --contexts 64,100k --window 16 --sinks 4
holds "j['kind'] == 'gguf' and j['architecture'] == 'llama' and j['files'] == ['tiny.gguf']"
holds "(j['layers'], j['width'], j['heads'], j['kv_heads'], j['head_size'], j['mlp_width']) == (2, 32, 4, 2, 8, 64)"
holds "j['vocabulary'] == 40 and j['context'] == 128 and j['tied'] is True and j['bos'] == -1 and j['eos'] == []"
holds "j['parameters'] == 19872 and j['bytes'] == 19712 // 32 * 34 + 160 * 4"
holds "j['formats'].pop('F32') == dict(tensors=5, numbers=160, bytes=640)"
holds "j['formats'].pop('Q8_0') == dict(tensors=15, numbers=19712, bytes=20944) and len(j['formats']) == 1"
holds "'tensors' not in j"
holds "j['adapter'] == dict(path=None, source='tokens', delay=16, bits=16, reads=4, layers=2, fusion='post', \
	parameters=4754, bytes=19016)"
holds "[m['context'] for m in j['memory']] == [64, 102400]"
# keys and values: 2 of 2 heads of 8, 4 bytes, 2 layers; in blocks of 128 positions, and the sinks in 16
holds "j['memory'][0]['global']['cache'] == 128 * 2 * 2 * 8 * 4 * 2"
holds "j['memory'][0]['window']['cache'] == (128 + 16) * 256"
holds "j['memory'][1]['global']['cache'] == 102400 * 256"
holds "j['memory'][1]['window']['cache'] == (3 * 128 + 16) * 256"
# ids, in two streams, and what was found
holds "j['memory'][1]['rosa']['index'] == round(102400 * (2 * 23 + 5) + 1200)"
holds "j['memory'][1]['rosa']['values'] == 102400 * 2 * 8"
holds "j['bytes_per_token'] == dict(index=51, values=16, keys_and_values_float16=128)"
holds "all(sum(way.values()) == 2 * way['total'] for m in j['memory'] for way in m.values() if way != m['context'])"
holds "j['activation_bits'] == 32"
check 0 "" rounded.gguf
says "^Products by the formats Q4_K, Q5_K and Q6_K round activations to 16 bits"
check 0 "" rounded.gguf --json
holds "j['activation_bits'] == 16"
check 0 "" tiny.gguf --json --tensors
holds "len(j['tensors']) == 20 and sum(t['bytes'] for t in j['tensors']) == j['bytes']"
holds "dict(name='token_embd.weight', format='Q8_0', shape=[40, 32], bytes=1360) in j['tensors']"
check 0 "" 'odd "name".gguf' --json
holds "j['path'] == 'odd \"name\".gguf'"

# ---------------------------------------------------------------------------------------- folders, which need JSON read

if "$program" --version | grep -q "jansson: yes"; then
	for path in tiny tiny/ tiny/model.safetensors; do
		check 0 "" "$path" --json
		holds "j['kind'] == 'safetensors' and (j['parameters'], j['bytes'], j['eos']) == (19872, 39744, [3, 5])"
		holds "list(j['formats']) == ['BF16'] and j['context'] == 0"
	done
	for path in tiny tiny.gguf; do
		check 0 "" "$path" --adapter adapter --json --contexts 1000
		holds "list(j['adapter'].values())[1:7] == ['own', 0, 8, 1, 1, 'pre']"
		holds "j['adapter']['path'] == 'adapter' and j['adapter']['parameters'] == 4192"
		holds "j['adapter']['bytes'] == 16768"
		holds "(j['window'], j['sinks'], j['global_layers']) == (16, 4, 1)"
		holds "j['memory'][0]['window']['cache'] == 128 * (1024 + 3 * 128 + 16)"
		holds "j['memory'][0]['rosa']['index'] == round(4 * (1000 * 12.4 + 600))"
		holds "j['memory'][0]['rosa']['values'] == 1000 * 8"
	done
	check 0 "" tiny --adapter adapter --window 32
	says "^adapter adapter$"
	says "layers        1 of 2, the first 1 global"
	says "^Window 32, 4 sinks"
	check 1 "adapter_config.json; name the folder" tiny --adapter tiny
	check 2 "bits is for an adapter to be added" tiny --adapter adapter --bits 4
	sed -i 's/"llama"/"mamba"/' tiny/config.json
	check 1 "tiny/config.json: model_type is mamba; supported are llama, qwen2 and qwen3" tiny
	rm tiny/config.json
	check 1 "has no config.json" tiny
	check 1 "config.json" tiny/model.safetensors
else
	check 1 "libjansson-dev" tiny
fi

# -------------------------------------------------------------------------------------------------------- what is wrong

check 2 "PATH is missing: rosatune info PATH"
check 2 "unexpected argument tiny" tiny.gguf tiny
check 2 "unknown option -j" -j
check 2 "did you mean --tensors" tiny.gguf --tensor
check 2 "contexts 8k,,1: give up to" tiny.gguf --contexts 8k,,1
check 2 "contexts 8k,: give up to" tiny.gguf --contexts 8k,
check 2 "give up to 16 lengths" tiny.gguf --contexts ""
check 2 "give up to 16 lengths" tiny.gguf --contexts 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17
check 2 "give up to 16 lengths" tiny.gguf --contexts 0
check 2 "give up to 16 lengths" tiny.gguf --contexts 99999999999
check 2 "from 1 to 16" tiny.gguf --bits 17
check 1 "bits 5: the model's width 32 is no multiple of it; 16 would fit" tiny.gguf --bits 5
check 1 "nowhere: No such file" nowhere
mkfifo waits
check 1 "waits: is not a regular file" waits # at once, although nothing is ever written to it
check 1 "is neither a GGUF nor a .safetensors file" write.py
head -c 700 tiny.gguf >short.gguf
check 1 "short.gguf: " short.gguf
: >empty.gguf
check 1 "empty.gguf: is empty" empty.gguf
check 1 "has no config.json" .

finish
