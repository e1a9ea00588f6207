#!/usr/bin/env python3
"""Turn the PTX that nvcc makes of kernels into C++, so that it runs without a GPU: ``ptx.py kernels.ptx kernels.cpp``.

Each kernel becomes a function of one thread, and each instruction a line of that; what instructions do is in ptx.hpp.
Threads run one after the other: kernels in which they wait for each other (``bar``, ``shfl``) cannot. Such a kernel,
or one with an instruction that is not known here, is registered with the reason why it does not run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

REGISTERS = {"pred": "bool", "b16": "u16", "b32": "u32", "b64": "u64", "f32": "u32", "f64": "u64"}
NUMBERS = {f"{kind}{bits}": f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64)}
TYPES = {**NUMBERS, "b8": "u8", "b16": "u16", "b32": "u32", "b64": "u64", "f16": "f16", "f32": "f32", "f64": "f64"}
TYPES["pred"] = "pred"
OF_THREAD = {"%tid.x": "threadIdx.x", "%ntid.x": "blockDim.x", "%ctaid.x": "blockIdx.x", "%nctaid.x": "gridDim.x"}

# What takes operands of one type: functions of ptx.hpp, and what an operator of C++ does to bits, whatever their sign
# (the compiler is done in half the time).
PLAIN = "abs add bfe bfi clz div mad.lo max min mul mul.lo neg not popc prmt rcp sub".split()
OPERATORS = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}
# Where floats say no rounding they may be fused with others, which gives other bits.
ROUNDED = ("add", "sub", "mul", "div", "rcp")
COMPARISONS = "eq ne lt le gt ge neu ltu leu gtu geu nan".split()

ENTRY = re.compile(r"\.entry (?P<name>\w+)\((?P<parameters>.*?)\)\s*\{(?P<body>.*?)^\}", re.DOTALL | re.MULTILINE)
PARAMETER = re.compile(
    r"\.param (?:\.align \d+ )?\.(?P<type>\w+) (?:\.ptr (?:\.global )?(?:\.align \d+ )?)?(?P<name>\w+)"
    r"(?:\[(?P<bytes>\d+)\])?"
)
TABLE = re.compile(
    r"^(?:\.visible )?\.(?:global|const) \.align (?P<align>\d+) \.b8 (?P<name>\w+)\[\d+\] = (?P<bytes>\{[^}]*\});",
    re.MULTILINE,
)
LOCAL = re.compile(r"\.local \.align (?P<align>\d+) \.b8\s+(?P<name>\w+)\[(?P<bytes>\d+)\]")
DECLARED = re.compile(r"\.reg \.(?P<type>\w+)\s+%(?P<name>\w+)(?:<(?P<count>\d+)>)?")
STATEMENT = re.compile(r"(?:@(?P<negated>!?)(?P<condition>%\w+)\s+)?(?P<op>[a-z][\w.]*)(?:\s+(?P<operands>.*))?")
NAMESPACE_OF_FILE = re.compile(r"(?P<bytes>\d+)(?=_GLOBAL__N_)")


class UnknownPtxError(Exception):
    """PTX that cannot be turned into C++ here."""


def type_of(name: str) -> str:
    if name not in TYPES:
        raise UnknownPtxError(f"type {name}")
    return f"ptx::{TYPES[name]}"


def host_name(name: str) -> str:
    """The name that the host's compiler gives a kernel: an unnamed namespace has no hash of the file in it."""
    done, rest = "", name
    while found := NAMESPACE_OF_FILE.search(rest):
        done += rest[: found.start()] + "12_GLOBAL__N_1"
        rest = rest[found.end() + int(found["bytes"]) :]
    return done + rest


def split(operands: str) -> list[str]:
    """Operands: what is between commas that are not in braces."""
    return [part.strip() for part in re.split(r",(?![^{]*\})", operands)] if operands else []


class Kernel:
    """One kernel, on its way from PTX to C++."""

    def __init__(self, entry: re.Match[str], tables: dict[str, str]) -> None:
        self.name = host_name(entry["name"])
        parameters = list(PARAMETER.finditer(entry["parameters"]))
        self.sizes = [each["bytes"] or f"sizeof({type_of(each['type'])})" for each in parameters]
        self.addresses = {each["name"]: f"ptx::address(arguments[{i}])" for i, each in enumerate(parameters)}
        self.addresses |= {name: f"ptx::address({table})" for name, table in tables.items()}
        # Assembly in the source comes in braces, some with a register of its own that nothing reads.
        body = re.sub(r"//[^\n]*", "", entry["body"])
        body = re.sub(
            r"\{ \.reg \.b16 tmp; (mov\.b32 \{[^}]*\}.*?;) \}", lambda found: re.sub(r"\btmp\b", "_", found[1]), body
        )
        self.body = re.sub(r"\{ +(cvt.*?;)\}", r"\1", body)

    def value(self, operand: str) -> str:
        """What an operand stands for: a register's bits, a number's, an address, or one of the thread's own numbers."""
        if operand in OF_THREAD:
            return OF_THREAD[operand]
        if operand.startswith("%"):
            return operand.replace("%", "r_")
        if operand.startswith(("0f", "0d")):
            return f"0x{operand[2:]}ull"
        if operand in self.addresses:
            return self.addresses[operand]
        if re.fullmatch(r"-?(\d+|0x[0-9A-F]+)U?", operand):
            return f"ptx::number({operand.rstrip('U')}ll)"
        raise UnknownPtxError(f"operand {operand}")

    def address(self, operand: str) -> str:
        base, plus, offset = operand.strip("[]").partition("+")
        return f"{self.value(base)} + {self.value(offset)}" if plus else self.value(base)

    def memory(self, words: list[str], operands: list[str]) -> Iterator[str]:
        """Loads and stores: of one register, or of several beside each other."""
        space = {"global": "constant" if "nc" in words else "global", "param": "own", "local": "own"}.get(words[1])
        if space is None:
            raise UnknownPtxError(f"memory .{words[1]}")
        registers, where = operands if words[0] == "ld" else reversed(operands)
        names, kind = split(registers.strip("{}")), type_of(words[-1])
        own = ", own" if space == "own" else ""
        yield f"{{ const auto at = ptx::{space}<{kind}>({self.address(where)}, {len(names)}{own});"
        for i, name in enumerate(names):
            if words[0] == "st":
                yield f"ptx::store<{kind}>(at, {i}, {self.value(name)});"
            elif name != "_":
                yield f"ptx::set({self.value(name)}, ptx::load<{kind}>(at, {i}));"
        yield "}"

    def taken_apart(self, kind: str, parts: list[str], register: str) -> Iterator[str]:
        for i, part in enumerate(parts):
            if part != "_":
                yield f"ptx::set({self.value(part)}, ptx::part<{len(parts)}, {kind}>({self.value(register)}, {i}));"

    def instruction(self, op: str, operands: list[str]) -> Iterator[str]:
        words = op.split(".")
        if words[0] == "bra":
            yield f"goto {operands[0].lstrip('$')};"
        elif op == "ret":
            yield "return;"
        elif words[0] in ("ld", "st"):
            yield from self.memory(words, operands)
        elif words[-1] not in TYPES or (words[-1].startswith("f") and words[0] in ROUNDED and "rn" not in words):
            raise UnknownPtxError(f"instruction {op}")
        elif words[0] == "mov" and operands[0].startswith("{"):
            yield from self.taken_apart(type_of(words[-1]), split(operands[0].strip("{}")), operands[1])
        else:
            yield f"ptx::set({self.value(operands[0])}, {self.result(op, words, operands[1:])});"

    def result(self, op: str, words: list[str], operands: list[str]) -> str:
        """What an instruction puts into its first operand."""
        name, kind = ".".join(word for word in words[:-1] if word != "rn"), type_of(words[-1])
        if words[0] == "mov" and operands[0].startswith("{"):
            return f"ptx::join<{kind}>({', '.join(self.value(each) for each in split(operands[0].strip('{}')))})"
        if op == "atom.global.max.u32":
            return f"ptx::atomic_max({self.address(operands[0])}, {self.value(operands[1])})"
        bits = [self.value(each) for each in operands]
        values = [f"ptx::as<{kind}>({each})" for each in bits]
        if words[0] in ("mov", "cvta"):
            return bits[0]
        if name in OPERATORS and not words[-1].startswith("f"):
            return f"{bits[0]} {OPERATORS[name]} {bits[1]}"
        if name in PLAIN:
            return f"ptx::{name.replace('.', '_')}_({', '.join(values)})"
        if name in ("shl", "shr"):
            return f"ptx::{name}_({values[0]}, static_cast<ptx::u32>({bits[1]}))"
        if name == "mul.wide":
            return f"ptx::mul_wide({', '.join(values)})"
        if name == "selp":
            return f"{bits[2]} ? {values[0]} : {values[1]}"
        if words[0] == "cvt" and words[1:-2] in ([], ["rn"]):
            return f"ptx::cvt<{type_of(words[-2])}>({values[0]})"
        if words[0] == "setp" and len(words) == 3 and words[1] in COMPARISONS:
            return f"ptx::compare_{words[1]}({', '.join(values)})"
        raise UnknownPtxError(f"instruction {op}")

    def statement(self, line: str) -> list[str]:
        found = STATEMENT.fullmatch(line)
        if not found:
            raise UnknownPtxError(line)
        made = list(self.instruction(found["op"], split(found["operands"])))
        if found["condition"]:
            made = [f"if ({found['negated']}{self.value(found['condition'])}) {{", *made, "}"]
        return made

    def function(self, name: str) -> list[str]:
        """The kernel as a function: all that it declares comes first, because C++ jumps over no declaration."""
        declared, statements = [f"void {name}(const void* const* arguments) {{"], []
        own = [f"{{ptx::address(arguments[{i}]), {size}}}" for i, size in enumerate(self.sizes)]
        for line in (part.strip() for part in re.split(r"[;\n]", self.body)):
            if found := LOCAL.fullmatch(line):
                self.addresses[found["name"]] = f"ptx::address({found['name']})"
                declared.append(f"alignas({found['align']}) unsigned char {found['name']}[{found['bytes']}];")
                declared.append(f"std::memset({found['name']}, 0xa5, {found['bytes']});")
                own.append(f"{{ptx::address({found['name']}), {found['bytes']}}}")
            elif found := DECLARED.fullmatch(line):
                first, names = f"r_{found['name']}", int(found["count"] or 0)
                all_names = [f"{first}{i}" for i in range(1, names)] or [first]
                registers = ", ".join(f"{each} = ptx::kUnset" for each in all_names)
                declared.append(f"{REGISTERS[found['type']]} {registers};")
            elif found := re.fullmatch(r"\$(\w+):", line):
                statements.append(f"{found[1]}:;")
            elif line and line not in "{}" and not line.startswith(".pragma"):
                statements += self.statement(line)
        return [*declared, f"const ptx::Own own[] = {{{', '.join(own)}}};", *statements, "}"]


def translate(ptx: str) -> Iterator[str]:
    """Lines of C++ for all kernels of a PTX file, each registered under its GPU and its name on the host."""
    yield '#include "ptx.hpp"'
    yield "namespace {"
    yield "using ptx::u16, ptx::u32, ptx::u64;"
    tables = {}
    for i, found in enumerate(TABLE.finditer(ptx)):
        tables[found["name"]] = f"table_{i}"
        yield f"alignas({found['align']}) const unsigned char table_{i}[] = {found['bytes']};"
        yield f"const ptx::Table known_{i}(table_{i}, sizeof table_{i});"
    gpu = re.findall(r"^\.target (\w+)", ptx, re.MULTILINE)[0]
    entries = list(ENTRY.finditer(ptx))
    if len(entries) != ptx.count(".entry "):
        sys.exit(f"ptx.py: of {ptx.count('.entry ')} kernels {len(entries)} were found")
    for i, entry in enumerate(entries):
        kernel = Kernel(entry, tables)
        thread, why_not = f"kernel_{i}", ""
        try:
            yield from kernel.function(thread)
        except UnknownPtxError as unknown:
            thread, why_not = "nullptr", str(unknown)
        sizes = ", ".join(kernel.sizes)
        yield f'const ptx::Registered registered_{i}("{gpu} {kernel.name}", {{{sizes}}}, {thread}, R"({why_not})");'
    yield "}  // namespace"


if __name__ == "__main__":
    source, target = sys.argv[1:]
    Path(target).write_text("\n".join(translate(Path(source).read_text())) + "\n")
