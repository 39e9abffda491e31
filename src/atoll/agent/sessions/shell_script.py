"""Scripts for the shells, in their own language: bash's, and that of any other sh.

Rules for every line here:
1. A leading backslash keeps aliases out; `builtin` (in sh, `command`) keeps functions of the same name out.
2. Nothing depends on what a command may have changed: words are quoted (IFS, globbing), `>|` overwrites whatever
   noclobber says, and each script is called as `. SCRIPT && :`, where errexit does not hold.
3. A script hands on the exit status it found, so that the next command sees that of the one before it in `$?`.
4. Standard input is the control socket; answers go out on it. Standard output and error are /dev/null.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

READY, INPUT_OPENED, DROPPED = b"ready", b"input", b"dropped "
ENDED, KEPT = b"ended", b"kept"  # the last words of a shell, with its status and directory; in the file WORDS
_COMPLETE = re.compile(rb"#complete (\d{1,18})\n\Z")
_LOST = re.compile(rb"#lost (\d{1,18})\n\Z")
LONGEST_COMPLETE = 32  # bytes, with some to spare
INTERRUPT_SIGNAL = 41  # a real-time signal that nobody uses

START, INIT, RESTORE, LAST, WORDS, GO = "start", "init", "restore", "last", "words", "go"
AFTER, STATES = "after", ("state", "state1")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Change(NamedTuple):
    """A variable that a shell is told to set, or with None to unset.

    One that `gives_way` is set only where the shell still has what it was given before, `former`.
    """

    value: str | None
    gives_way: bool = False
    former: str | None = None

    def is_for(self, has: str | None) -> bool:
        """Whether it is to be made by who has this value."""
        return not self.gives_way or has == self.former


def followed_by(first: Mapping[str, Change], then: Mapping[str, Change]) -> dict[str, Change]:
    """Two sets of changes as one: who still has what the first would have changed is changed by the second."""
    both = {**first, **then}
    for name in first.keys() & then.keys():
        if then[name].gives_way:
            both[name] = first[name]._replace(value=then[name].value)
    return both


class Dialect(msgspec.Struct, frozen=True):
    """A family of shells: how it is started and spoken to. In the texts, @DIR is the shell's scratch directory."""

    arguments: tuple[str, ...]
    directory_fd: int  # where the shell has its scratch directory
    input_fd: int  # where it opens a command's input
    call: str  # runs a builtin, whatever functions there are
    wait: str  # does nothing until there are lines to read
    needs_waking: bool  # by the number of a batch of lines that it has not read
    mend: str  # undoes what would keep the next command from running
    eval: str
    init: str
    set_options: str  # a script for saved state to use
    dump: str
    dump_exported: str
    keeps_all_on_exit: str  # a condition
    function: str  # the one that is being executed
    save_variable: str  # NAME into __atoll_NAME
    restore_variable: str

    @property
    def directory(self) -> str:
        return f"/proc/self/fd/{self.directory_fd}"

    def scripts(self) -> dict[str, str]:
        """The files a shell finds in its directory."""
        texts = {INIT: self.init + _INIT, AFTER: _AFTER, "exit": _EXIT, "options": self.set_options}
        return {name: self._fill(text) for name, text in texts.items()}

    def command(self, text: str, number: int, with_stdin: bool) -> str:
        """Runs a command with its own descriptors. Those of the shell are out of its reach, and back when it ends."""
        outputs = f">{self.directory}/o{number} 2>{self.directory}/e{number} {self.directory_fd}>&-"
        if not with_stdin:
            return f"{self.eval} {quote(text)} <&1 {outputs}\n"
        run = f"{self.eval} {quote(text)} <&{self.input_fd} {outputs} {self.input_fd}<&-"
        return f"{{ {self.answer(INPUT_OPENED.decode())}; {run}; }} {self.input_fd}<{self.directory}/i{number}\n"

    def before(self, lasting: Mapping[str, Change], env: Mapping[str, str | None], cwd: str | None, undo: str) -> str:
        """Sets what holds from now on, and what holds for one command, until the script `undo`."""
        lines = ["__atoll=$?", f"__atoll_undo={undo}"]
        lines += [self._change(name, change) for name, change in lasting.items()]
        for name, value in env.items():
            lines += [self.save_variable.replace("NAME", name), self._set(name, value)]
        if cwd is not None:
            lines.append("__atoll_pwd=${PWD-} __atoll_oldpwd=${OLDPWD-}")
            lines.append(f"CDPATH= {self.call} cd -- {quote(cwd)}")
        return "\n".join([*lines, f'{self.call} return "$__atoll"\n'])

    def undo(self, env: Mapping[str, str | None], cwd: str | None) -> str:
        """Takes back what held for one command."""
        lines = ["__atoll=$?", f"{self.call} unset __atoll_undo"]
        lines += [self.restore_variable.replace("NAME", name) for name in env]
        if cwd is not None:
            lines.append(f'CDPATH= {self.call} cd -- "$__atoll_pwd" || {self.call} cd /')
            lines.append("OLDPWD=$__atoll_oldpwd")
            lines.append(f"{self.call} unset __atoll_pwd __atoll_oldpwd")
        return "\n".join([*lines, f'{self.call} return "$__atoll"\n'])

    def source(self, name: str) -> str:
        return f"\\. {self.directory}/{name} && {self.call} :"

    def source_command(self, name: str) -> str:
        """A command, not shielded from errexit: one that fails under it ends the shell, as it should."""
        return f"\\. {self.directory}/{name}"

    def answer(self, word: str) -> str:
        return f"{self.call} printf '{word}\\0' >&0"

    def source_after(self, batch: int, number: int) -> str:
        """The last line of command `number`. `batch` goes back with the answer: what a command sends of its own accord
        would else leave the real answer over for the next. By it, too, a shell knows whether it was woken for more.
        """
        return f"__atoll=$? __atoll_batch={batch} __atoll_number={number}; {self.source(AFTER)}"

    def source_dropped(self, batch: int, number: int) -> str:
        """The script for a shell that was interrupted, perhaps while its state was saved."""
        return f"{self.answer(f'{DROPPED.decode()}{number}')}; {self.source_after(batch, number)}"

    def _change(self, name: str, change: Change) -> str:
        if not change.gives_way:
            return self._set(name, change.value)
        former = "" if change.former is None else f"x{change.former}"
        condition = f'{self.call} test "${{{name}+x${{{name}-}}}}" = {quote(former)}'
        return f"if {condition}; then {self._set(name, change.value)}; fi"

    def _set(self, name: str, value: str | None) -> str:
        unset = f"{self.call} unset {name}"
        return unset if value is None else f"{self.call} export {name}={quote(value)}"

    def _fill(self, text: str) -> str:
        pieces = {
            "@DUMP_EXPORTED": self.dump_exported,
            "@DUMP": self.dump,
            "@KEEPS_ALL_ON_EXIT": self.keeps_all_on_exit,
            "@FUNCTION": self.function,
            "@NUMBER": str(self.directory_fd),
            "@WAIT": self.wait,
            "@MEND": self.mend,
            "@CALL": self.call,
            "@DIR": self.directory,
        }
        for name, piece in pieces.items():
            text = text.replace(name, piece)
        return text


def quote(text: str) -> str:
    """A text as one word of any shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def saved_number(end: bytes) -> int | None:
    """After which command the state was saved in a file that ends so. None if it was not saved as a whole."""
    complete = _COMPLETE.search(end)
    return int(complete[1]) if complete else None


def is_settled(end: bytes, number: int) -> bool:
    """Whether a file that ends so has the state after command `number`, or says that it could not be saved."""
    found = _COMPLETE.search(end) or _LOST.search(end)
    return found is not None and int(found[1]) == number


def is_variable_name(name: str) -> bool:
    """Whether a shell can have it; the kernel takes more."""
    return bool(_NAME.fullmatch(name))


# The interrupt makes a shell drop what it does and go back to reading: SIGINT alone would not, while it waits for a
# child that did not die of SIGINT. A handler of the command's own must not keep it there either.
#
# A shell may end in the middle of a command, whose redirections still hold. It has put its own descriptors aside then,
# at the first free numbers from 10 on, and finds its directory there.
_INIT = rf"""
@CALL trap '@CALL trap - INT; @CALL kill -INT $$' {INTERRUPT_SIGNAL}
@CALL trap '__atoll_status=$? __atoll_function=@FUNCTION
for __atoll_at in @NUMBER 10 11 12 13 14 15; do
__atoll_at=/proc/self/fd/$__atoll_at
if @CALL test -f "$__atoll_at/exit"; then @CALL . "$__atoll_at/exit" 2>/dev/null && @CALL :; fi
done' EXIT
@CALL printf '{READY.decode()}\0' >&0
@WAIT
"""

# First the answer, for which somebody waits. Two files take turns, so that one is whole whenever the shell is killed:
# the other's turn comes when this one is. What does not fit is not kept, and does not fill the place. The number at the
# end says that a file is whole, or will not be, and that it is not left over from the turn before.
_AFTER = r"""@CALL printf '%s %s\0' "$__atoll_batch" "$__atoll" >&0
{
@DUMP
} >|"@DIR/state${__atoll_odd:+1}" && __atoll_odd=${__atoll_odd:-11} && __atoll_odd=${__atoll_odd#1} ||
@CALL printf '#lost %s\n' "${__atoll_number:-0}" >|"@DIR/state${__atoll_odd:+1}"
@MEND
@WAIT
@CALL return "$__atoll"
"""

# The shell ends: by `exit`, and then the next one is fresh, or by a failure under errexit, and then all is kept. Under
# errexit a shell cannot tell `exit 1` from a failure, and keeps all. What held for one command is taken back first.
# A command's `exit` takes back its redirections, unless it is in a function. If they still hold, nobody asked for this
# end: a signal, or no way back to its lines. Then it has nothing to say, and what was saved before is what counts.
_EXIT = rf"""if @CALL test "${{__atoll_undo-}}"; then @CALL . "$__atoll_at/$__atoll_undo" && @CALL :; fi
__atoll=$__atoll_status
if @KEEPS_ALL_ON_EXIT; then
{{
@DUMP
}} >|"$__atoll_at/{LAST}"
@CALL printf '{KEPT.decode()} %s %s' "$__atoll" "${{PWD-}}" >|"$__atoll_at/{WORDS}"
elif @CALL test "$__atoll_at" = @DIR || @CALL test "$__atoll_function"; then
{{
@DUMP_EXPORTED
}} >|"$__atoll_at/{LAST}"
@CALL printf '{ENDED.decode()} %s %s' "$__atoll" "${{PWD-}}" >|"$__atoll_at/{WORDS}"
fi
"""

_BASH_DIRECTORY = r"""\builtin printf '\\builtin cd -- %q\n' "${PWD-}" """
_COMPLETE_LINE = r"""@CALL printf '#complete %s\n' "${__atoll_number:-0}" """

BASH = Dialect(
    # Interactive, since only then an error, an unset variable or an interrupt ends the command and not the shell.
    arguments=("--norc", "--noprofile", "--noediting", "-i"),
    directory_fd=200,  # scripts use the low ones
    input_fd=201,
    call=r"\builtin",
    wait=r"\builtin :",  # which may be a function, as in the shortest of fork bombs
    needs_waking=False,
    mend=r"\builtin enable eval",
    eval=r"\builtin eval --",
    # History would expand "!" and fill a file; mail and window size would be looked for after each command. While a
    # script is read, a failed `exec` would end the shell as if it were not interactive.
    init=rf"""\builtin set +o history +H
\builtin unset HISTFILE MAILCHECK
\builtin shopt -u checkwinsize
\builtin shopt -s execfail
PS1='$ '
if [[ -f @DIR/{RESTORE} ]]; then \builtin . @DIR/{RESTORE}; fi
""",
    set_options=r"""for __atoll in $(\builtin compgen -A shopt); do
case :$__atoll_shopt: in *:$__atoll:*) \builtin shopt -s $__atoll ;; *) \builtin shopt -u $__atoll ;; esac
done
for __atoll in $(\builtin compgen -A setopt); do
case :$__atoll_set: in *:$__atoll:*) \builtin set -o $__atoll ;; *) \builtin set +o $__atoll ;; esac
done
""",
    # Options as two lists rather than 80 lines, each of which bash would write by itself. Functions and aliases come
    # last: they could change what the lines before them mean.
    dump=r"""\builtin printf '__atoll_shopt=%q __atoll_set=%q\n\\builtin . @DIR/options\n' "$BASHOPTS" "$SHELLOPTS"
"""
    + _BASH_DIRECTORY
    + r"""
\builtin declare -p
\builtin umask -p
\builtin trap -p
\builtin declare -f
\builtin declare -F
\builtin alias -p
"""
    + _COMPLETE_LINE,
    dump_exported=_BASH_DIRECTORY
    + r"""
\builtin export -p
"""
    + _COMPLETE_LINE,
    keeps_all_on_exit=r"""[[ $__atoll != 0 && $- == *e* ]]""",
    function="${FUNCNAME-}",
    save_variable=r"""__atoll_NAME=; if [[ -v NAME ]]; then __atoll_NAME=${NAME[@]@A}; fi""",
    restore_variable=r"""\builtin unset -v NAME; \builtin eval "$__atoll_NAME"; \builtin unset -v __atoll_NAME""",
)

SH = Dialect(
    arguments=("-i",),
    directory_fd=9,  # dash knows no descriptors of two digits
    input_fd=8,
    call=r"\command",
    # Busybox takes it for the end of its input when SIGCHLD interrupts it there, but its `read` does not. So it waits
    # in that, and is woken when its lines are there for it to read at once. Who woke it for what it has read already,
    # because something else had ended its wait, does not count.
    wait=rf"while IFS= \command read -r __atoll_go </proc/self/fd/9/{GO} && "
    r"""! \command [ "$__atoll_go" -gt "${__atoll_batch:-0}" ]; do \:; done""",
    needs_waking=True,
    mend=r"\:",
    eval=r"\command eval",
    init=rf"""PS1='$ '
if \[ -f @DIR/{RESTORE} \]; then \. @DIR/{RESTORE}; fi
__atoll_batch=0
""",
    set_options="",
    # A plain sh cannot print its functions, nor its aliases so that they could be read again.
    dump=r"""\command set
\command export -p
\command readonly -p
\command set +o
\command printf 'umask '
\command umask
\command trap
\command printf '\\command cd -- "$PWD"\n'
"""
    + _COMPLETE_LINE,
    # The shell is about to end, so its PWD may as well be exported: that is the one way to have it printed in quotes.
    dump_exported=r"""\command export PWD
\command export -p
\command printf '\\command cd -- "$PWD"\n'
"""
    + _COMPLETE_LINE,
    keeps_all_on_exit=r"""case $__atoll$- in 0*) \command false ;; *e*) \: ;; *) \command false ;; esac""",
    function="",  # it takes back redirections in any case
    save_variable=r"""\command unset __atoll_NAME; if \[ "${NAME+x}" \]; then __atoll_NAME=$NAME; fi""",
    restore_variable=r"""if \[ "${__atoll_NAME+x}" \]; then \command export NAME="$__atoll_NAME"
else \command unset NAME; fi; \command unset __atoll_NAME""",
)
