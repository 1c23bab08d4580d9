//! The commands that are shown, and what is done with each.

/// What is done with a command.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// It is run as written, and ends with this exit code.
    Ends(i32),
    /// It is run with this in its place, which has the same subcommand and options and may have more; exit code.
    As(&'static str, i32),
    /// It takes minutes, and ends with this exit code.
    Slow(i32),
    /// It needs a GPU, and ends with this exit code there.
    Gpu(i32),
    /// It needs something else that the machine may lack.
    Needs(&'static str),
}
use How::{As, Ends, Gpu, Needs, Slow};

const NVRTC: How = Needs("NVRTC");
const SLURM: How = Needs("Slurm");
const NETWORK: How = Needs("a network, or another program");
const FILES: How = Needs("files of the reader's own");
const QUERY: How = Needs("ulplab-query");

/// In this order they are run, and earlier ones make files for later ones.
pub const ROWS: &[(&str, How)] = &[
    // README.md
    (
        "ulplab sweep experiments/kv_cache.toml",
        As("ulplab sweep experiments/kv_cache.toml --dry-run", 0),
    ),
    ("ulplab sweep kv_cache", As("ulplab sweep kv_cache --dry-run", 0)),
    (
        "ulplab sweep kv_cache --set tokens=128",
        As("ulplab sweep kv_cache --set tokens=128 --dry-run", 0),
    ),
    (
        "ulplab inspect checkpoints/my-mxfp4",
        As("ulplab inspect datasets/gptoss-mini", 0),
    ),
    (
        "ulplab inspect checkpoints/my-mxfp4 --source checkpoints/my-bf16",
        // A source that is quantized itself: its matrices are read, and not judged.
        As("ulplab inspect datasets/gptoss-mini --source datasets/gptoss-mini", 4),
    ),
    (
        "ulplab sweep round_trip --set draws=2",
        As("ulplab sweep round_trip --set draws=2 --dry-run", 0),
    ),
    ("cargo test --workspace", Needs("the tests themselves")),
    ("pip install jupyterlab -r notebooks/requirements.txt", NETWORK),
    ("jupyter lab notebooks/round_trip.ipynb", NETWORK),
    ("ulplab kernels attest --check", Needs("attestations of this very tree")),
    ("pip install numpy safetensors torch 'transformers>=5.17'", NETWORK),
    ("python experiments/peers/transformers_forward.py > peer.json", NETWORK),
    ("ulplab dev bench --peer peer.json", FILES),
    ("pip install numpy ml_dtypes torch torchao==0.18.0", NETWORK),
    ("python experiments/peers/quantize.py > peer.json", NETWORK),
    ("ulplab dev bench formats --peer peer.json", FILES),
    ("python/build_wheel.sh dist && pip install dist/ulplab-*.whl", NETWORK),
    ("ulplab dev verify", Slow(0)),
    (
        "ulplab dev generate --prompt \"To be, or \" --temperature 0.7",
        As(
            "ulplab dev generate --prompt \"To be, or \" --temperature 0.7 --tokens 1",
            0,
        ),
    ),
    ("ulplab sweep experiments/kernels_in_model.toml", Gpu(0)),
    ("ulplab sweep experiments/decode_step.toml", Gpu(0)),
    ("ulplab dev completions bash", Ends(0)),
    ("ulplab list formats", Ends(0)),
    ("ulplab list sites", Ends(0)),
    ("ulplab list sites --model qwen3-mini", Ends(0)),
    ("ulplab kernels list --all", Ends(0)),
    ("ulplab list metrics", Ends(0)),
    ("ulplab list rules", Ends(0)),
    // docs/bisect.md and the help of `bisect`
    ("ulplab sweep examples/planted.toml --out runs/wrong", Slow(100)),
    ("ulplab bisect runs/wrong", Slow(100)),
    (
        "ulplab bisect examples/planted.toml --recipe planted --right v4_fp8 -o found.toml --capsule culprit.safetensors",
        Slow(100),
    ),
    (
        "ulplab bisect examples/planted.toml --recipe planted --to tokens --capsule culprit.safetensors",
        Slow(100),
    ),
    ("ulplab bisect --replay culprit.safetensors", Slow(100)),
    ("ulplab bisect runs/main runs/mine", Ends(0)),
    (
        "ulplab bisect experiments/smoke.toml --dump engine.safetensors --gate 'layers.*.output:relative_l2<=1e-3'",
        FILES,
    ),
    ("ulplab bisect runs/kv_cache/2026-01-31T120000Z -o found.toml", FILES),
    // docs/records.md and the help of `query`
    (
        "ulplab query runs/kv_cache/2026-01-31T120000Z \"SELECT recipe, max(value) FROM records WHERE metric = 'kl' GROUP BY recipe\"",
        QUERY,
    ),
    (
        "ulplab query runs/main runs/mine \"SELECT run, recipe, mean FROM summaries WHERE site = 'logits'\" -o means.csv",
        QUERY,
    ),
    ("cargo install --locked --path query", QUERY),
    ("ulplab query --help", QUERY),
    ("ulplab query RUN… \"SELECT …\"", QUERY),
    // docs/ci.md and the help of `diff` and `baseline`
    ("ulplab diff runs/main runs/mine", Ends(0)),
    (
        "ulplab diff runs/main runs/mine --identical --markdown diff.md",
        Ends(0),
    ),
    (
        "ulplab diff runs/main runs/mine --worsening 'layers.*.output:relative_l2<=5%' --worsening 'us_cold<=3%'",
        As(
            "ulplab diff runs/main runs/mine --worsening 'layers.*.output:relative_l2<=5%' --worsening 'kl<=3%'",
            0,
        ),
    ),
    (
        "ulplab diff runs/main runs/mine --worsening 'layers.*.output:relative_l2<=5%' --worsening 'us_cold<=3%' --markdown diff.md",
        As(
            "ulplab diff runs/main runs/mine --worsening 'layers.*.output:relative_l2<=5%' --worsening 'kl<=3%' --markdown diff.md",
            0,
        ),
    ),
    ("cat diff.md >> \"$GITHUB_STEP_SUMMARY\"", NETWORK),
    (
        "ulplab baseline accept runs/main --why \"measured with the new quantizer, whose codes differ at ties\" --by ada",
        Ends(0),
    ),
    (
        "ulplab baseline accept runs/main --why initial --by ada",
        Needs("a run that is no baseline yet, as that of the command above"),
    ),
    ("ulplab baseline compare runs/mine --worsening 'kl<=5%'", Ends(0)),
    ("ulplab baseline log kv_cache", As("ulplab baseline log smoke", 0)),
    (
        "ulplab gate --calibrate experiments/smoke.toml -o calibration.json",
        Slow(0),
    ),
    // docs/cluster.md and the help of `submit`, `merge`, `status`, `gate`, `report`
    (
        "ulplab submit experiments/kv_cache.toml --slurm --tasks 8 --cpus 16 --wait",
        SLURM,
    ),
    (
        "ulplab submit experiments/kv_cache.toml --slurm --tasks 8 --cpus 16 --time 01:00:00 --print",
        Ends(0),
    ),
    (
        "ulplab submit experiments/kv_cache.toml --slurm --tasks 8 --cpus 16 --partition-name long --wait",
        SLURM,
    ),
    (
        "ulplab submit experiments/kernels.toml --slurm --tasks 16 --parallel 4 --gres gpu:1",
        SLURM,
    ),
    ("ulplab status runs/kv_cache/array", As("ulplab status runs/main", 0)),
    (
        "ulplab status runs/kv_cache/array --json",
        As("ulplab status runs/main --json", 0),
    ),
    ("ulplab merge runs/kv_cache/array", As("ulplab merge runs/main", 0)),
    (
        "ulplab merge slices/1 slices/2 slices/3 --out runs/kv_cache/merged",
        As("ulplab merge runs/main runs/mine --out runs/merged", 0),
    ),
    (
        "ulplab gate runs/kv_cache/2026-01-31T120000Z",
        As("ulplab gate runs/main", 0),
    ),
    (
        "ulplab gate runs/kv_cache/2026-01-31T120000Z --paired",
        As("ulplab gate runs/main --paired", 0),
    ),
    ("ulplab gate --calibrated", Needs("calibrations of this very tree")),
    (
        "ulplab report runs/kv_cache/2026-01-31T120000Z",
        As("ulplab report runs/main", 0),
    ),
    ("kubectl apply -f kubernetes.yaml", NETWORK),
    (
        "until kubectl get job ulplab-sweep -o 'jsonpath={.status.conditions[*].type}' | grep -qwE 'Complete|Failed'; do sleep 10; done",
        NETWORK,
    ),
    (
        "kubectl patch job ulplab-merge --type merge -p '{\"spec\":{\"suspend\":false}}'",
        NETWORK,
    ),
    (
        "kubectl wait --for=condition=Complete --timeout=1h job/ulplab-merge",
        NETWORK,
    ),
    ("ulplab kernels check --devices all", Gpu(0)),
    // The help of `sweep`
    (
        "ulplab sweep experiments/kv_cache.toml --set tokens=128 --out runs/short",
        As(
            "ulplab sweep experiments/kv_cache.toml --set tokens=128 --out runs/short --dry-run",
            0,
        ),
    ),
    (
        "ulplab sweep experiments/kv_cache.toml --resume",
        As("ulplab sweep experiments/kv_cache.toml --resume --dry-run", 0),
    ),
    // docs/decode-step.md and the help of `generate`
    (
        "ulplab dev generate --prompt Shall --temperature 0.7 --recipe v4_fp8",
        As(
            "ulplab dev generate --prompt Shall --temperature 0.7 --recipe v4_fp8 --tokens 1",
            0,
        ),
    ),
    ("ulplab dev generate --prompt \"First Citizen:\" --device cuda", Gpu(0)),
    (
        "ulplab dev generate --prompt \"First Citizen:\" --device cuda --record v4_nvfp4 --round 'layers.*.attention.kv.*=v4_nvfp4'",
        Gpu(0),
    ),
    (
        "ulplab dev generate --prompt \"First Citizen:\" --device cuda --weights fp8_b64_f32+mxfp4 --record v4_fp8 --index index_fp8",
        Gpu(0),
    ),
    (
        "ulplab dev generate --prompt \"First Citizen:\" --device cuda --activations fp8_b128_f32 --weights fp8_b64_f32 --record v4_fp8",
        Gpu(0),
    ),
    (
        "ulplab dev generate --prompt \"Alice \" --experiment experiments/kernels_in_model.toml --recipe engine",
        Gpu(0),
    ),
    (
        "ulplab dev generate --prompt \"Alice was beginning to \" --tokens 60 --experiment experiments/kernels_in_model.toml --recipe …",
        Gpu(0),
    ),
    // docs/mix.md, docs/findings and the help of `front`
    (
        "ulplab mix weights --at 'layers.*.attention.*.weight' --at 'layers.*.mlp.*.weight' --formats nvfp4,fp8_token,bf16",
        As(
            "ulplab mix weights --at 'layers.*.attention.*.weight' --at 'layers.*.mlp.*.weight' --formats nvfp4,fp8_token,bf16 --dry-run",
            0,
        ),
    ),
    (
        "ulplab mix weights --at 'layers.*.mlp.*.weight' --formats nvfp4,fp8_token --bytes 0.35 -o found.toml",
        As(
            "ulplab mix weights --at 'layers.*.mlp.*.weight' --formats nvfp4,fp8_token --bytes 0.35 -o found.toml --dry-run",
            0,
        ),
    ),
    (
        "ulplab mix weights --at 'layers.*.attention.kv.*' --formats nvfp4,mxfp8,bf16 --kl 0.01",
        As(
            "ulplab mix weights --at 'layers.*.attention.kv.*' --formats nvfp4,mxfp8,bf16 --kl 0.01 --dry-run",
            0,
        ),
    ),
    (
        "ulplab mix weights --at 'layers.**.weight' --formats nvfp4,fp8_token --bytes 0.35",
        As(
            "ulplab mix weights --at 'layers.**.weight' --formats nvfp4,fp8_token --bytes 0.35 --dry-run",
            0,
        ),
    ),
    (
        "ulplab mix weights --at 'layers.**.weight' --formats nvfp4,mxfp8,bf16 --kl 0.01 -o mixed.toml",
        As(
            "ulplab mix weights --at 'layers.**.weight' --formats nvfp4,mxfp8,bf16 --kl 0.01 -o mixed.toml --dry-run",
            0,
        ),
    ),
    (
        "ulplab mix weights --set 'window=[{text=\"alice\",draws=6}]' --at 'layers.*.attention.*.weight' --at 'layers.*.mlp.*.weight' \
         --formats nvfp4,fp8_token,bf16 --bytes 0.35 -o front.toml",
        Slow(0),
    ),
    ("ulplab sweep qwen3_kv --set 'model=\"checkpoints/my-qwen3\"'", FILES),
    ("ulplab sweep weights --set 'model=\"checkpoints/my-qwen3\"'", FILES),
    // docs/gates.md and docs/gates-of-others.md
    (
        "ulplab gate --calibrate experiments/smoke.toml --draws 40 --effect 2 -o smoke.calibration.json",
        Slow(0),
    ),
    (
        "ulplab gate --calibrate experiments/smoke.toml --draws 40 -o smoke.calibration.json",
        Slow(0),
    ),
    (
        "ulplab gate --calibrate flake.toml --draws 22 --effect 3 -o flake.calibration.json",
        FILES,
    ),
    ("ulplab sweep flake.toml", FILES),
    ("ulplab audit vllm", Needs("Python with numpy and ml_dtypes")),
    ("ulplab audit my_gates.toml", FILES),
    ("ulplab audit my_gates.toml --json", FILES),
    // docs/kernels.md and the help of `kernels`, `describe`, `dump`, `probe`, `bench`
    ("ulplab kernels power rmsnorm delta_prefill", Slow(0)),
    ("ulplab kernels power rmsnorm linear", Slow(0)),
    ("ulplab kernels power --write experiments/results/power.json", Slow(0)),
    ("ulplab kernels check mine.toml --keep-failed failed", FILES),
    ("ulplab kernels describe rmsnorm", Ends(0)),
    ("ulplab kernels describe attention", Ends(0)),
    ("ulplab kernels dump rmsnorm bf16.random.7x333 rms", Ends(0)),
    ("ulplab kernels dump rmsnorm bf16.random.7x333 rmsnorm-case", Ends(0)),
    ("ulplab kernels describe softmax --experiment mine.toml", FILES),
    ("ulplab kernels dump softmax sharp inputs --experiment mine.toml", FILES),
    ("ulplab kernels check experiments/outside.toml", Gpu(0)),
    (
        "ulplab kernels check experiments/outside.toml --keep-failed failed",
        Gpu(0),
    ),
    (
        "TRITON_INTERPRET=1 ulplab kernels check experiments/outside.toml --only '**/f32.*.unaligned'",
        Needs("Triton"),
    ),
    (
        "ulplab kernels check experiments/own_op.toml",
        Needs("Python with numpy"),
    ),
    ("ulplab kernels check --set 'kernels=[\"rope.*\"]'", Gpu(0)),
    ("ulplab kernels check draws", Gpu(0)),
    ("ulplab kernels mutants rope.cos_sin_swapped --only 'rope.*/**'", Gpu(4)),
    ("ulplab kernels mutants --only 'rope.*/**'", Gpu(4)),
    ("ulplab kernels mutants --device compile", NVRTC),
    ("ulplab kernels attest experiments/results", Gpu(0)),
    ("ulplab kernels attest experiments/results --peers peers.json", Gpu(0)),
    (
        "ulplab kernels attest --only 'swap_ffn.*/**' experiments/results",
        Gpu(4),
    ),
    ("ulplab kernels check --device compile --only 'rmsnorm.*/**'", NVRTC),
    ("ulplab kernels check --only 'rope.*/**' --device compile", NVRTC),
    ("ulplab kernels check --only 'delta_prefill.*/**'", Gpu(4)),
    ("ulplab kernels check --only 'wgmma.*/**'", Gpu(4)),
    (
        "pip install --target cuda nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96",
        NETWORK,
    ),
    ("export ULPLAB_CUDA=cuda/nvidia/cu13", NETWORK),
    ("ulplab dev bench --tokens 128", As("ulplab dev bench --tokens 8", 0)),
    ("ulplab dev bench formats", Slow(0)),
    ("ulplab dev bench layouts --layout blocked_128x4", Slow(0)),
    ("ulplab kernels bench --out bench", Gpu(0)),
    (
        "ulplab kernels time --only 'quantize.*/**' --peers bench/peers.json",
        Gpu(0),
    ),
    ("ulplab kernels time --only 'rope.*/**'", Gpu(0)),
    ("ulplab kernels time --only 'fp8_gemm.*/**'", Gpu(0)),
    (
        "ulplab kernels time --only 'state_transpose.*/**' --peers peers.json",
        Gpu(0),
    ),
    ("ulplab kernels time --peers peers.json", Gpu(0)),
    ("ulplab kernels check --peers peers.json", Gpu(0)),
    ("python3 experiments/peers/kernels.py peers.json", NETWORK),
    (
        "ulplab kernels trace decode_step --variant simple --case model.b1.511",
        Ends(0),
    ),
    (
        "ulplab kernels trace mhc_pre --variant simple --variant split --html trace.html",
        Ends(0),
    ),
    ("ulplab kernels trace mhc_pre --variant simple --variant split", Ends(0)),
    (
        "ulplab kernels trace swap_ffn --variant fused --html trace.html",
        Ends(0),
    ),
    (
        "ulplab kernels trace delta_prefill --variant chunks --case gdn.bf16.t8192.kv_to_vk",
        Slow(0),
    ),
    (
        "ulplab kernels trace delta_handover --variant pointer --case gdn.b32",
        Slow(0),
    ),
    (
        "ulplab kernels trace delta_handover --variant pointer --variant turned --case gdn.b32",
        Slow(0),
    ),
    (
        "ulplab kernels compare state_transpose.registers/f32.b8 state_transpose.tile/f32.b8 --pairs 40",
        Gpu(0),
    ),
    (
        "ulplab kernels compare state_transpose.registers/f32.b8 state_transpose.tile/f32.b8 --pairs 60",
        Gpu(0),
    ),
    (
        "ulplab kernels compare delta_prefill.chunks/gdn.bf16.t8192.kv delta_prefill.chunks/gdn.bf16.t8192.kv_to_vk --pairs 60 --within \
         0.01",
        Gpu(0),
    ),
    ("ulplab kernels list rmsnorm", Ends(0)),
    ("ulplab kernels list rope --cases", Ends(0)),
    ("ulplab kernels probe --only 'e4m3.n64.*'", Gpu(0)),
    // docs/python.md
    ("pip install pytest ml_dtypes && pytest examples/python", NETWORK),
    ("pytest tests/ --ulplab-audit", NETWORK),
    ("pytest --ulplab-report out", NETWORK),
    (
        "python -c \"import ulplab; ulplab.reproduce('out/capsules/test_norm.py-test_wrong-1.safetensors')\"",
        NETWORK,
    ),
    (
        "FLASHINFER_LOGLEVEL=10 FLASHINFER_DUMP_SAFETENSORS=1 FLASHINFER_DUMP_DIR=calls python serve.py",
        NETWORK,
    ),
    ("python -c \"import ulplab; print(ulplab.replay('calls'))\"", NETWORK),
    // The help of the commands for files
    (
        "ulplab quantize weights.safetensors --format nvfp4 --rule te -o codes.safetensors",
        Ends(0),
    ),
    ("ulplab dequantize codes.safetensors -o back.safetensors", Ends(0)),
    ("ulplab inspect codes.safetensors --source weights.safetensors", Ends(0)),
    (
        "ulplab inspect checkpoint --html report.html",
        As("ulplab inspect datasets/qwen3-mini --html report.html", 0),
    ),
    (
        "ulplab compare want.safetensors got.safetensors --gate 'cosine>=0.999'",
        Ends(0),
    ),
    ("ulplab compare weights.safetensors codes.safetensors --parity", Ends(0)),
    (
        "ulplab dev completions bash > ~/.local/share/bash-completion/completions/ulplab",
        As("ulplab dev completions bash", 0),
    ),
    ("ulplab dev man ~/.local/share/man/man1", As("ulplab dev man man1", 0)),
    ("ulplab dev schema > experiment.schema.json", As("ulplab dev schema", 0)),
];
