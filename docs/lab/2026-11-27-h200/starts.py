"""Where a bare process on this machine spends its time before the first step: imports, CUDA, first kernels, counting."""

import time

begin = time.perf_counter()


def lap(name):
    global begin
    now = time.perf_counter()
    print(f"{name:40s} {now - begin:7.2f} s", flush=True)
    begin = now


import torch

lap("import torch")
torch.cuda.init()
lap("cuda.init")
torch.empty(1, device="cuda")
torch.cuda.synchronize()
lap("first tensor")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
lap("randn")
(a @ a)
torch.cuda.synchronize()
lap("first product")
from torch.utils.flop_counter import FlopCounterMode

lap("import flop counter")
with FlopCounterMode(display=False) as c:
    a @ a
torch.cuda.synchronize()
lap("count one product")
import torch._dynamo

lap("import dynamo")
x = torch.randn(8, 3, 224, 224, device="cuda")
w = torch.nn.Conv2d(3, 64, 7).cuda()
torch.backends.cudnn.benchmark = True
w(x)
torch.cuda.synchronize()
lap("first convolution")
opt = torch.optim.SGD(w.parameters(), lr=0.1)
lap("SGD")
w(x).sum().backward()
opt.step()
torch.cuda.synchronize()
lap("backward, step")
