"""Build the package: mypyc compiles the core if possible; otherwise the core is plain Python.

The source is the same in both cases.  The core is compiled when a wheel is built or installed, on a CPython with a GIL
or on CPython 3.13 without the GIL, if a C compiler is available.  It is not compiled in an editable install, because
Python would import the extension rather than the edited source.  ``PURGATORY_COMPILE=1`` compiles it in an editable
install, too; ``PURGATORY_COMPILE=0`` never compiles it.  mypyc is required only where the core is to be compiled, so a
pure wheel can be built without it.

On CPython 3.13 without the GIL, mypyc is not required but used if it is installed, because one dependency of mypy,
its native parser, has no wheels there.  docs/how-to/threads.md contains the commands.

The sources do not contain the address of the repository.  If the environment variable ``PURGATORY_URL`` contains it,
the metadata has the project's URLs, and the links and pictures of the README, which is the long description, are
absolute.  A source distribution keeps these URLs for the wheels that are built from it.
"""

import email
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# The folder that is compiled, except these two files, which must stay interpreted and explain why.
CORE = "purgatory/core"
INTERPRETED = {"delayed_operation.py", "stack_guard.py"}
MYPYC = "mypy[mypyc]>=2.4"

# CPython does the same, but does not export the function.  No other thread has the new class yet.
IMMORTAL_CLASS = """
static PyObject *immortal_class(PyObject *type) {
    if (type != NULL) {
        PyObject_GC_UnTrack(type);
        type->ob_tid = _Py_UNOWNED_TID;
        type->ob_ref_local = _Py_IMMORTAL_REFCNT_LOCAL;
        type->ob_ref_shared = 0;
    }
    return type;
}
"""

PLACES = {
    "Homepage": "",
    "Documentation": "/blob/HEAD/docs/index.md",
    "Changelog": "/blob/HEAD/CHANGELOG.md",
    "Issues": "/issues",
    "Source": "",
}
HERE = Path(__file__).parent
NO_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
NO_GIL_3_13 = NO_GIL and sys.version_info < (3, 14)


def say(message: str) -> None:
    """Print a message.  pip shows it with -v, and if the build fails."""
    print(f"aiopurgatory: {message}", file=sys.stderr)


def has_compiler() -> bool:
    """Return whether the compiler in CC, or else the one that built Python, is on the PATH."""
    if sys.platform == "win32":
        return True  # found through the registry, not on the PATH; build_ext reports an error
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(command.split()[0]) is not None


def obstacle() -> str | None:
    """Return what prevents compiling, or None."""
    setting = os.environ.get("PURGATORY_COMPILE", "")
    if setting == "0":
        return "PURGATORY_COMPILE=0"
    if sys.implementation.name != "cpython":
        return f"mypyc does not support {sys.implementation.name}"
    if NO_GIL and sys.version_info >= (3, 14) and setting != "1":
        return "the compiled core is tested without the GIL only on CPython 3.13"
    if not has_compiler():
        return "no C compiler found"
    return None


def is_wanted() -> bool:
    """Return whether this command is to compile, and print a line if something prevents it."""
    if os.environ.get("PURGATORY_COMPILE", "") != "1":
        if not {"bdist_wheel", "install", "build", "build_ext"} & set(sys.argv[1:]):
            return False
        if {"editable_wheel", "develop"} & set(sys.argv[1:]):
            return False
    reason = obstacle()
    if reason is not None:
        say(f"{reason}: installing as pure Python")
    return reason is None


class OptionalBuild(build_ext):
    """Compile if possible, and install the plain Python sources if the compiler fails."""

    def run(self) -> None:
        """Compile, or leave the sources unchanged."""
        try:
            super().run()
        except Exception as error:
            if os.environ.get("PURGATORY_COMPILE") == "1":
                raise
            say(f"the C compiler failed ({error}): installing as pure Python")
            self.extensions.clear()


def extensions() -> list[object]:
    """Return the extensions of the compiled core, or an empty list."""
    if not is_wanted():
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        say("mypyc is not installed: installing as pure Python")
        return []
    core = sorted(
        path.as_posix() for path in Path(CORE).rglob("*.py") if path.name not in INTERPRETED | {"__init__.py"}
    )
    options = ["--strict", *["--no-native-parser"] * NO_GIL_3_13]  # the native parser is the dependency without wheels
    built = list(mypycify([*options, *core], opt_level="3"))
    try:
        support_local_classes(built)
        support_weak_references(built)
        if NO_GIL_3_13:
            support_threads(built)
    except LookupError as error:
        if os.environ.get("PURGATORY_COMPILE") == "1":
            raise
        say(f"{error}: installing as pure Python")
        return []
    if sys.platform != "win32":
        for extension in built:
            # Only the core calls its functions, so the compiler may inline them, and calls need no table.
            extension.extra_compile_args += ["-fvisibility=hidden", "-fno-semantic-interposition"]
    return built


def support_local_classes(built: list[Extension]) -> None:
    """Let Python free a class that a function has defined, by editing the C code, because mypyc (2.4) prevents it.

    An object holds a reference to its class.  For an object of a subclass, too, CPython expects that a compiled class
    gives this reference back when it frees the object, and shows it to the garbage collector.  Compiled classes are
    never freed, so the collector need not see the references to them.  Objects in a free list keep theirs.

    Raises LookupError if the code is not as expected.
    """
    file = generated(built)[".c"]
    source = file.read_text(encoding="utf-8")
    num_classes = source.count("CPyType_FromTemplate(")
    source, shown = re.subn(
        r"(\w+)_traverse\(\w+ \*self, visitproc visit, void \*arg\)\s+\{",
        r"\g<0> if (Py_TYPE(self) != CPyType_\1) { Py_VISIT(Py_TYPE(self)); }",
        source,
    )
    source, freed = re.subn(
        r"Py_TYPE\(self\)->tp_free\(\(PyObject \*\)self\);",
        "PyTypeObject *kind = Py_TYPE(self); kind->tp_free((PyObject *)self); Py_DECREF(kind);",
        source,
    )
    if not shown == freed == num_classes > 0:
        raise LookupError(f"mypyc compiles classes in an unknown way ({num_classes}, {shown}, {freed})")
    file.write_text(source, encoding="utf-8")


def support_weak_references(built: list[Extension]) -> None:
    """Give the compiled tasks a slot for weak references, by editing the C code, because mypyc cannot do it (2.4).

    The slot comes before the fields of TimerTask, so it has the same offset in the subclasses, which inherit that
    number.  New objects consist of zeros.  Before a task is freed, the references to it are cleared.

    Raises LookupError if the code is not as expected.
    """
    code = generated(built)
    header, source = (code[suffix].read_text(encoding="utf-8") for suffix in (".h", ".c"))
    task = "purgatory___core___timer___task___TimerTaskObject"
    fields = re.compile(r"(?<=CPyVTableItem \*vtable;)(\s+uint32_t bitmap;\s+int16_t __is_set_up;[^}]*\} (\w+);)")
    kinds = {kind for _, kind in fields.findall(header)}
    size = re.compile(rf"(?<=\.tp_basicsize = sizeof\({task}\),)")
    free = re.compile(rf"(_dealloc\((?:{'|'.join(kinds)}) \*self\)\s+\{{\s+PyObject_GC_UnTrack\(self\);)")
    source, sized = size.subn(f" .tp_weaklistoffset = offsetof({task}, weak_references),", source)
    source, freed = free.subn(r"\1 if (self->weak_references) PyObject_ClearWeakRefs((PyObject *)self);", source)
    if task not in kinds or (sized, freed) != (1, len(kinds)):
        raise LookupError(f"mypyc compiles tasks in an unknown way ({len(kinds)}, {sized}, {freed})")
    code[".h"].write_text(fields.sub(r" PyObject *weak_references;\1", header), encoding="utf-8")
    code[".c"].write_text(source, encoding="utf-8")


def support_threads(built: list[Extension]) -> None:
    """Make the compiled classes immortal, by editing the C code.  mypyc (2.4) does this only for CPython 3.14.

    An object counts as a reference to its class.  All threads would write that counter of the class, and wait for each
    other.  CPython 3.13 makes the classes of Python code immortal for the same reason.

    mypyc also calls a function that CPython 3.13 does not have, to free a module that an import has replaced.  Such a
    module is not freed.

    Raises LookupError if the code is not as expected.
    """
    file = generated(built)[".c"]
    source, immortal = re.subn(
        r"(?<= = )(CPyType_FromTemplate\([^;]*\));", r"immortal_class(\1);", file.read_text(encoding="utf-8")
    )
    source, included = re.subn(r"(?m)^#include \"__native_internal_[0-9a-f]+\.h\"\n", rf"\g<0>{IMMORTAL_CLASS}", source)
    if not immortal or included != 1:
        raise LookupError(f"mypyc compiles classes in an unknown way ({immortal}, {included})")
    file.write_text(f"#define _PyObject_XDecRefDelayed(module) ((void)(module))\n{source}", encoding="utf-8")


def generated(built: list[Extension]) -> dict[str, Path]:
    """Return the file of C code that contains the core, and its header, by their suffixes."""
    files = [Path(name) for extension in built for name in extension.sources + extension.depends]
    return {file.suffix: file for file in files if re.fullmatch(r"__native_[0-9a-f]+\.[ch]", file.name)}


def address() -> str:
    """Return the address of the repository, from PURGATORY_URL or the source distribution; empty if unknown."""
    url = os.environ.get("PURGATORY_URL", "").rstrip("/").removesuffix(".git")
    if url and not re.fullmatch(r"https://[^\s/]+/\S+", url):
        raise SystemExit(f"PURGATORY_URL must be the https:// address of the repository, got {url!r}")
    metadata = HERE / "PKG-INFO"
    if not url and metadata.exists():
        lines = email.message_from_bytes(metadata.read_bytes()).get_all("Project-URL", [])
        url = dict(line.split(", ", 1) for line in lines).get("Source", "")
    return url


def readme(url: str) -> str:
    """Return the README, with absolute links outside its code blocks if the address of the repository is known."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    if not url:
        return text
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    for number in range(0, len(parts), 2):  # the others are code
        part = re.sub(r"(\b(?:src|srcset)=\")(?!https?:)", rf"\1{url}/raw/HEAD/", parts[number])
        part = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{url}/raw/HEAD/", part)
        parts[number] = re.sub(r"(?<!!)(\[[^\]]*\]\()(?!https?:|#)", rf"\1{url}/blob/HEAD/", part)
    return "".join(parts)


url = address()
# The build front end asks for further requirements with this command.
asked = sys.argv[1:2] == ["egg_info"]
setup(
    setup_requires=[MYPYC] if asked and obstacle() is None and not NO_GIL_3_13 else [],
    ext_modules=extensions(),
    cmdclass={"build_ext": OptionalBuild},
    long_description=readme(url),
    long_description_content_type="text/markdown",
    project_urls={label: url + path for label, path in PLACES.items()} if url else {},
)
