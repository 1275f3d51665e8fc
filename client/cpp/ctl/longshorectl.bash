# bash completion for longshorectl. Source it, or install it as bash-completion/completions/longshorectl.
# Commands and options come from --help, so there is no second list to keep.

# _longshorectl_help COMMAND...: the help text of a command.
_longshorectl_help() {
  "${COMP_WORDS[0]}" "$@" --help 2>/dev/null
}

# Names of the commands below a command: the words that its help lists under "Subcommands:".
_longshorectl_commands() {
  _longshorectl_help "$@" | sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p'
}

_longshorectl() {
  local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD - 1]}"
  local command=() index
  for ((index = 1; index < COMP_CWORD && ${#command[@]} < 2; ++index)); do
    case "${COMP_WORDS[index]}" in
      policy) command=(policy) ;;
      -*) break ;;
      *) command+=("${COMP_WORDS[index]}"); [ "${command[0]}" = policy ] || break ;;
    esac
  done
  local words
  case "$previous" in
    --dtype | --query-dtype) words="f32 bf16 f16" ;;
    --policy) words="$(_longshorectl_presets)" ;;
    show | explain) words="$(_longshorectl_presets)" ;;
    *)
      if [[ "$word" == -* ]]; then
        words="$(_longshorectl_help "${command[@]}" | grep -o -- '^  \(-[a-z],\)\?--[a-z][a-z-]*' | grep -o -- '--.*')"
      else
        words="$(_longshorectl_commands "${command[@]}")"
      fi
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}

_longshorectl_presets() {
  "${COMP_WORDS[0]}" policy list 2>/dev/null | sed -n '2,$s/ .*//p'
}

complete -F _longshorectl -o default longshorectl
