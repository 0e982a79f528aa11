"""By hand: GEMM, copies, ResNet-50; nothing of gpuproof."""

import json, statistics, sys, torch, torchvision

torch.manual_seed(0)
dev = "cuda"
out = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}


def timed(f, n, warm=5):
    for _ in range(warm):
        f()
    torch.cuda.synchronize()
    ev = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    ev[0].record()
    for i in range(n):
        f()
        ev[i + 1].record()
    torch.cuda.synchronize()
    t = [ev[i].elapsed_time(ev[i + 1]) / 1e3 for i in range(n)]
    return statistics.median(t), ev[0].elapsed_time(ev[n]) / 1e3 / n


def gemm(dtype, n, tf32=False, k=100):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a = torch.randn(n, n, device=dev, dtype=dtype)
    b = torch.randn(n, n, device=dev, dtype=dtype)
    c = torch.empty(n, n, device=dev, dtype=dtype)
    med, mean = timed(lambda: torch.mm(a, b, out=c), k)
    torch.backends.cuda.matmul.allow_tf32 = False
    return {"median_tflops": 2 * n**3 / med / 1e12, "mean_tflops": 2 * n**3 / mean / 1e12}


what = sys.argv[1]
if what == "ceilings":
    for name, dtype, tf32, n, k in (
        ("bf16", torch.bfloat16, False, 8192, 100),
        ("fp16", torch.float16, False, 8192, 100),
        ("tf32", torch.float32, True, 8192, 60),
        ("fp32", torch.float32, False, 8192, 20),
        ("bf16_4096", torch.bfloat16, False, 4096, 200),
    ):
        out[f"gemm_{name}"] = gemm(dtype, n, tf32, k)
    x = torch.empty(1 << 30, device=dev, dtype=torch.float32).normal_()
    y = torch.empty_like(x)
    med, mean = timed(lambda: y.copy_(x), 30)
    out["copy_4GiB_gbps_read_and_write"] = 2 * x.numel() * 4 / med / 1e9
    z = torch.empty_like(x)
    med, mean = timed(lambda: torch.add(x, y, out=z), 30)
    out["add_4GiB_gbps"] = 3 * x.numel() * 4 / med / 1e9
    del x, y, z
    h = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    d = torch.empty(1 << 28, dtype=torch.uint8, device=dev)
    med, _ = timed(lambda: d.copy_(h, non_blocking=True), 20)
    out["h2d_256MiB_gbps"] = h.numel() / med / 1e9
    med, _ = timed(lambda: h.copy_(d, non_blocking=True), 20)
    out["d2h_256MiB_gbps"] = h.numel() / med / 1e9
else:
    precision, steps, warm = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.backends.cudnn.benchmark = True
    tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    model = getattr(torchvision.models, what)(num_classes=1000).to(dev, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [
        torch.randn(256, 3, 224, 224, device=dev).to(memory_format=torch.channels_last) for _ in range(4)
    ]
    labels = [torch.randint(0, 1000, (256,), device=dev) for _ in range(4)]
    loss_f = torch.nn.CrossEntropyLoss()
    kinds = {"bf16": torch.bfloat16, "amp": torch.float16}
    scaler = torch.amp.GradScaler(enabled=precision == "amp")
    i = 0

    def step():
        global i
        x, t = batches[i % 4], labels[i % 4]
        i += 1
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=kinds.get(precision, torch.bfloat16), enabled=precision in kinds):
            loss = loss_f(model(x), t)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

    med, mean = timed(step, steps, warm)
    out |= {
        "what": what,
        "precision": precision,
        "median_images_per_s": 256 / med,
        "images_per_s": 256 / mean,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
    }
print(json.dumps(out))
