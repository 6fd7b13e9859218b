# Sourced by the scripts: finds a Python that can make environments and hands over to _env.py.
# Needs nothing but a shell. Candidates are tried by running them: a name on PATH may be a stub.

start() {
    old='' bare=''
    if [ "${PYTHON:-}" ]; then
        try "$PYTHON" "$@"
    else
        for name in python3.13 python3.12 python3.11 python3; do
            try "$name" "$@"
        done
    fi
    echo "crawlctl needs Python 3.11 or newer with the modules venv and ensurepip." >&2
    if [ "$bare" ]; then
        echo "$bare lacks them: install its venv package (Debian, Ubuntu: apt-get install python3-venv)," >&2
    elif [ "$old" ]; then
        echo "$old is too old: install a newer Python," >&2
    else
        echo "No Python was found that runs (tried ${PYTHON:-python3.13, 3.12, 3.11, python3}): install one," >&2
    fi
    echo "or name another one: PYTHON=/path/to/python3 $0 ..." >&2
    exit 1
}

# Does not return when the candidate will do.
try() {
    candidate=$1
    shift
    code=0
    "$candidate" -I -c 'import sys
if sys.version_info < (3, 11): sys.exit(3)
from importlib.util import find_spec
if not (find_spec("venv") and find_spec("ensurepip")): sys.exit(4)' 2>/dev/null || code=$?
    case $code in
        0) exec "$candidate" -I "$here/_env.py" "$@" ;;
        3) old=${old:-$candidate} ;;
        4) bare=${bare:-$candidate} ;;
    esac
}
