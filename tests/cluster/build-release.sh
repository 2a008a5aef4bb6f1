#!/usr/bin/env bash
# Builds an earlier release from its commit in the history, for tests that run it beside this one:
#   tests/cluster/build-release.sh RELEASE COMMIT
# puts ag and ag-worker into $CARGO_TARGET_DIR/releases/RELEASE. Does nothing if they are there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
release=$1 commit=$2
out="${CARGO_TARGET_DIR:?}/releases/$release"
[[ "$(cat "$out/commit" 2>/dev/null || true)" != "$commit" ]] || exit 0
git cat-file -e "$commit^{commit}" 2>/dev/null || {
  echo "build-release: commit $commit of release $release is not in this history: git fetch --unshallow" >&2
  exit 1
}
rm -rf "$out"
mkdir -p "$out/source"
git archive "$commit" | tar -x -C "$out/source"
# Optimised as little as its own crates, which is enough for tests and takes a third of the time.
(cd "$out/source" && CARGO_TARGET_DIR="$out/target" cargo build --locked -p ag-cli \
  --config 'profile.dev.package."*".opt-level=1' --config 'profile.dev.debug=false')
cp "$out/target/debug/ag" "$out/target/debug/ag-worker" "$out/"
rm -rf "$out/target" "$out/source"
found=$("$out/ag" --version)
[[ "$found" == "ag $release" ]] || { echo "build-release: $commit is '$found', not release $release" >&2; exit 1; }
echo "$commit" > "$out/commit"
