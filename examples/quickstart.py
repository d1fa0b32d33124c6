#!/usr/bin/env python3
"""Train a small model to repeat what lies far outside its attention window. A few seconds on a CPU.

A text is 32 random tokens, twice. Attention sees 8 positions, so it cannot know how the second half continues: without
reading, its loss is log(47) = 3.9. The adapters find where the last few tokens occurred before and read what followed.

The model here is made on the spot, with random weights. A pretrained one is used in the same way:
    model = transformers.AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M")
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rosatune.hf

torch.manual_seed(1)
shape = dict(vocab_size=50, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
model = LlamaForCausalLM(LlamaConfig(**shape))
# units=0: the hidden states of random weights have no size yet that a scale could be measured by
rosatune.hf.attach(model, window=8, sinks=1, stage="all", units=0)
optimizer = torch.optim.AdamW(rosatune.hf.parameter_groups(model, adapter_lr=5e-3, backbone_lr=5e-3))
for step in range(61):
    ids = torch.randint(3, 50, (8, 32)).repeat(1, 2)
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, 32:-1].transpose(1, 2), ids[:, 33:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(f"step {step:3d}: loss on the repeated half {loss.item():.2f}")

model.save_pretrained("quickstart-model")  # all of it was trained; else save_adapter keeps the adapters alone
model = rosatune.hf.from_pretrained("quickstart-model")
print("the text  ", ids[0, 8:20].tolist())
print("continued ", model.generate(ids[:1, :40], max_new_tokens=12, do_sample=False)[0, 40:].tolist())
