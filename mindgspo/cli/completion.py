"""`mindgspo completion`: what a shell needs to complete commands, options and settings."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

# Bash breaks words at = and :, which settings contain. Parts without a blank between them are joined here, and what
# bash has in front of the last = already is left out of the answer. No answer means that bash completes names of files.
_BASH = r"""
_mindgspo_completion() {
    local rest=${COMP_LINE:0:COMP_POINT} words=() part word
    for part in "${COMP_WORDS[@]:0:COMP_CWORD + 1}"; do
        if [[ ${#words[@]} -eq 0 || $rest == [[:space:]]* ]]; then
            rest=${rest#"${rest%%[![:space:]]*}"}
            words+=("$part")
        else
            words[${#words[@]} - 1]+=$part
        fi
        rest=${rest#"$part"}
    done
    word=${words[${#words[@]} - 1]}
    local IFS=$'\n'
    COMPREPLY=($(COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _MINDGSPO_COMPLETE=complete_bash "$1"))
    [[ $word == --*=* ]] && word=${word#--*=}
    if [[ $COMP_WORDBREAKS == *=* && $word == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*=}"}"}")
    fi
    [[ ${COMPREPLY[0]-} == *[.=] ]] && compopt -o nospace
    return 0
}
complete -o default -F _mindgspo_completion mindgspo
"""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that you use.")],
) -> None:
    """Print a script that lets your shell complete commands.

    \b
    mindgspo completion bash >> ~/.bashrc
    mindgspo completion zsh >> ~/.zshrc
    mindgspo completion fish > ~/.config/fish/completions/mindgspo.fish

    The next shell that you open then completes commands, options, and the keys and values of settings.
    """
    from typer.completion import get_completion_script

    if shell == "bash":
        print(_BASH)
    else:
        print(get_completion_script(prog_name="mindgspo", complete_var="_MINDGSPO_COMPLETE", shell=shell))
