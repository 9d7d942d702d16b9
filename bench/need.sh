# Sourced by the scripts here. Checks for missing tools before anything is built or started.

# need TOOL=PACKAGE ...: if a tool is missing, prints how to install it on Debian, and ends the script.
need() {
    local pair missing=0
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null && continue
        echo "MISSING: ${pair%%=*} (apt-get install ${pair#*=})" >&2
        missing=1
    done
    [ "$missing" = 0 ] || exit 1
}

# Prints the path of wireguard-go, or the path at which it should be. Searches in $WG, the folder of
# `go install`, and the search path. Debian's package comes last, since it is years older and slower.
find_wireguard() {
    local go_path found
    [ -z "${WG:-}" ] || { echo "$WG"; return; }
    go_path=$(go env GOPATH 2>/dev/null || true)
    for found in "${go_path:-$HOME/go}/bin/wireguard" "${go_path:-$HOME/go}/bin/wireguard-go" \
        "$HOME/go/bin/wireguard" "$(command -v wireguard-go || true)"; do
        [ ! -x "$found" ] || { echo "$found"; return; }
    done
    echo "${go_path:-$HOME/go}/bin/wireguard"
}

# Checks for wireguard-go and wg, and prints how to install missing ones. True if both are there.
has_wireguard() { # path of wireguard-go
    local ok=0
    [ -x "$1" ] || { echo "MISSING: wireguard-go at $1 (go install golang.zx2c4.com/wireguard@latest, or WG=path)" >&2; ok=1; }
    command -v wg >/dev/null || { echo "MISSING: wg (apt-get install wireguard-tools)" >&2; ok=1; }
    return "$ok"
}
