"""What bench/gpu_check.py has found, as text: the table, what is not in it, and whether anything failed."""

from __future__ import annotations

from pathlib import Path

MISSING = ("skipped", "not_done", "failed")  # where a step or row has not all it should: why
PROBED = {"ipc_memory": "IPC memory", "ipc_events": "IPC events", "wait_value": "values in IPC memory"}


def last_line(said: str) -> str:
    """Of what a command said, what most likely tells why it failed."""
    return said.strip().rsplit("\n", 1)[-1]


def what_is_missing(part: dict) -> list[str]:
    """Say in a line each what a step or row has not, and why."""
    found = [f"{word.replace('_', ' ')}: {last_line(str(part[word]))}" for word in MISSING if word in part]
    found += [
        f"reductions by {who}: {what}"
        for who, one in part.get("reductions", {}).items()
        for what in what_is_missing(one)
    ]
    if failures := part.get("failures"):
        found.append(f"{len(failures)} checks failed, first {failures[0]}")
    found += [f"{name} of MPS ends: {last_line(log)}" for name, log in sorted(part.get("mps_logs", {}).items())]
    return found


def table(found: dict) -> str:
    """Lay out the measurements: time, share of the limit, and how many times Gloo."""
    bandwidth = found["machine"]["copy_bytes_per_s"]
    heads = f"{'bytes':>11}{'time us':>11}{'of limit':>9}{'x Gloo':>8}{'x NCCL':>8}"
    lines = [f"{'MPS':<4}{'ranks':>6}  {'operation':<16}{heads}"]
    steps = [part for part in found.values() if isinstance(part, dict) and {"ranks", "rows"} <= part.keys()]
    for run_ in [*found["runs"], *steps]:
        with_mps = "yes" if run_["mps"] else "no"
        lines += [f"{with_mps:<4}{run_['ranks']:>6}  {line}" for line in what_is_missing(run_)]
        times = {(row["what"], row["bytes"]): row["s"] for row in run_["rows"]}
        notes = {(row["what"], row["bytes"]): row for row in run_["rows"] if "ratio" in row}
        for (what, nbytes), taken in times.items():
            if what.endswith(("gloo", "nccl")):
                continue
            share = 2 * run_["ranks"] * nbytes / bandwidth / taken
            # Between nodes it is not the GPU's memory that limits.
            of_limit = "-" if run_.get("topology") else f"{share:.2f}"
            line = f"{with_mps:<4}{run_['ranks']:>6}  {what:<16}{nbytes:>11}{taken * 1e6:>11.1f}{of_limit:>9}"
            for peer in ("gloo", "nccl"):
                peers = times.get((f"{what.removesuffix(' torch')} {peer}", nbytes))
                line += f"{peers / taken:8.1f}" if peers else " " * 8
            if note := notes.get((what, nbytes)):
                line += f"  {note['ratio']:.2f}x, {note['codec']} on the {note['codec_place']}"
            lines.append(line.rstrip())
        lines += [f"{'':<12}{line}" for line in table_of_overlap(run_.get("overlap", {}))]
        if run_["rows"]:
            lines.append(f"{'':<12}{run_['device_path']}")
    if most := max((run_.get("gloo_most_bytes", 0) for run_ in found["runs"]), default=0):
        lines.append(f"x Gloo: up to {most >> 20} MiB, above which it is not timed")
    lines += [*table_of_probe(found.get("probe", {})), *table_of_memory(found.get("memory", {}))]
    lines += table_of_deaths(found.get("killed", {}))
    return "\n".join([*lines, *table_of_hosts(found.get("hosts", {})), *table_of_codecs(found.get("codecs", {}))])


def table_of_overlap(overlap: dict) -> list[str]:
    """Say whether gradients travelled while backward went on, and what that saved."""
    lines = []
    if "during_backward" in overlap:
        spare, held = (f"{overlap[name] * 1e3:.0f} ms" for name in ("spare_s", "stood_still_s"))
        when = f"during backward, {spare} of {held} left" if overlap["during_backward"] else "after backward only"
        lines.append(f"gradients travel {when}")
    if "hidden" in overlap:
        alone, travel, both = (overlap[f"{name}_s"] * 1e3 for name in ("step_alone", "allreduces", "together"))
        lines.append(
            f"step {alone:.1f} ms, allreduces {travel:.1f} ms, both {both:.1f} ms: {overlap['hidden']:.0%} hidden"
        )
    return lines


def table_of_probe(probe: dict) -> list[str]:
    """Say what processes that share the GPU can do with each other's memory."""
    lines = [f"probe: {line}" for line in what_is_missing(probe)]
    for row in probe.get("rows", []):
        how = f"2 processes {'with' if row['mps'] else 'without'} MPS"
        lines += [f"{how}: {line}" for line in what_is_missing(row)]
        lines += [f"{how}: {text} {row[name]}" for name, text in PROBED.items() if name in row]
    return lines


def table_of_memory(memory: dict) -> list[str]:
    """Say on memory of which allocators the operations were checked."""
    lines = [f"memory: {line}" for line in what_is_missing(memory)]
    for row in memory.get("rows", []):
        text = "; ".join(what_is_missing(row)) or f"checked: {row.get('memory', 'not all of it')}"
        lines.append(f"memory of {row['scene']}: {text}")
    return lines


def table_of_deaths(killed: dict) -> list[str]:
    """Say what became of a rank whose mate was killed."""
    lines = [f"rank killed: {line}" for line in what_is_missing(killed)]
    for row in killed.get("rows", []):
        told = "; ".join(what_is_missing(row)) or f"told {row['noticed_s']:.1f} s later"
        end = "still there" if row["ended"] == "killed" else f"ended with {row['ended']}"
        lines.append(f"rank killed, the other leaves by {row['way']}: {told}; {end} after {row['ended_s']:.1f} s")
    return lines


def table_of_hosts(hosts: dict) -> list[str]:
    """Lay out what the broadcasts between hosts took."""
    lines = [f"between hosts: {line}" for line in what_is_missing(hosts)]
    for row in hosts.get("rows", []):
        used = f" ({row['used']})" if row["used"] != row["codec"] else ""
        codec = row["codec"] + used + (" of differences" if row["reference"] else "")
        ratio, speed = row["logical_bytes"] / row["wire_bytes"], row["logical_bytes"] / row["s"] / 1e9
        lines.append(f"{row['link_gbit']:>4} Gbit/s  {codec:<28}{ratio:>7.2f}x{speed:>8.2f} GB/s")
    return lines


def table_of_codecs(codecs: dict) -> list[str]:
    """Lay out the codecs' speeds beside that of a copy, and the links on which they gain."""
    lines = [f"codecs on the GPU: {line}" for line in what_is_missing(codecs)]
    if codecs.get("rows"):
        heads = f"{'ratio':>8}{'encode GB/s':>13}{'decode GB/s':>13}{'copy GB/s':>11}{'wins below Gbit/s':>19}"
        lines.append(f"{'codec':<9}{'datatype':<10}{'data':<11}{heads}")
    for row in codecs.get("rows", []):
        head = f"{row['codec']:<9}{row['dtype']:<10}{row['data']:<11}"
        if "failed" in row:
            lines.append(f"{head} failed: {row['failed']}")
        if "ratio" in row:
            encode, decode, copy = (row.get(f"{word}_bytes_per_s", 0) / 1e9 for word in ("encode", "decode", "copy"))
            figures = f"{row['ratio']:>8.2f}{encode:>13.1f}{decode:>13.1f}{copy:>11.1f}"
            lines.append(f"{head}{figures}{row.get('wins_below_gbit', 0):>19.0f}")
    skipped = [f"{row['codec']:<9}skipped: {row['skipped']}" for row in codecs.get("rows", []) if "skipped" in row]
    return [*lines, *dict.fromkeys(skipped)]  # one line for all rows of a codec


def outcome(part: dict | str) -> str:
    """In a line, how a step ended."""
    return part if isinstance(part, str) else "; ".join(what_is_missing(part)) or "done"


def summary(found: dict, out: Path) -> str:
    """Say what is not in the table."""
    lines = []
    for name, part in found.items():
        if name in ("machine", "mps", "runs", "gpu_path") or "rows" in part:
            continue
        good = part.get("work_here") or part.get("why_not") or part.get("library")
        if "cuda_aware" in part:
            wheel = ", ".join(part["wheels"]) or "no wheel"
            good = (
                f"{part['library'].splitlines()[0][:40].strip()} ({wheel}), takes device memory: {part['cuda_aware']}"
            )
        if "clean" in part:
            good = "clean" if part["clean"] else f"not clean: {last_line(part['said'])}"
        lines.append(f"{name}: {'; '.join(what_is_missing(part)) or good}")
    return "\n".join([*lines, f"{found['machine']['gpu']}, MPS {found.get('mps', 'not looked at')}; {out}"])


def has_failed(found: dict) -> bool:
    """Whether anything did; of NCCL, which is a peer, what it does not bear is told and fails nobody."""
    parts = [part for name, part in found.items() if name not in ("machine", "nccl") and isinstance(part, dict)]
    parts += found["runs"]
    parts += [row for part in parts for row in part.get("rows", [])]
    return any("failed" in part or "failures" in part or part.get("clean") is False for part in parts)
