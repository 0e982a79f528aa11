"""Three seconds idle, 12 s of bf16 products, 3 s idle."""

import time, torch

a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.randn_like(a)
c = torch.empty_like(a)
torch.cuda.synchronize()
time.sleep(3)
end = time.monotonic() + 12
n = 0
print("begin", time.time())
while time.monotonic() < end:
    for _ in range(50):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize()
    n += 50
print("end", time.time(), "products", n)
time.sleep(3)
