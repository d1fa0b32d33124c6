#!/usr/bin/env python3
"""Teach a small model to repeat what it read far outside its attention window. CPU, under a minute.

A text is 48 random tokens, twice. Attention sees 8 positions, so it cannot know how the second half goes on: its loss
stays near log(50) = 3.9. The adapters find in the past where the last few tokens stood before, and read what followed.

The model here is made on the spot. With a pretrained one it is the same:
    model = AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M")
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rosatune.hf

torch.manual_seed(1)
model = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2))
rosatune.hf.attach(model, window=8, sinks=1, stage="all")  # attention sees 8 positions, the adapters the whole past
optimizer = torch.optim.AdamW(rosatune.hf.parameter_groups(model, adapter_lr=3e-3, backbone_lr=3e-3))
for step in range(301):
    half = torch.randint(2, 50, (16, 48))
    ids = torch.cat([half, half], 1)
    logits = model(ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, 48:-1].flatten(0, 1), ids[:, 49:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 50 == 0:
        print(f"step {step:3d}  loss on the repeated half {loss.item():.2f}")
rosatune.hf.save_adapter(model, "quickstart-adapter")
prompt = torch.cat([half[:1], half[:1, :8]], 1)
answer = model.generate(prompt, max_new_tokens=8, do_sample=False)
print("expected", half[0, 8:16].tolist(), "\ngiven   ", answer[0, -8:].tolist())
