#!/usr/bin/env bash
# The steps of a release, each a subcommand. The workflow `release` runs them; each can also be run by hand.
#
#   release.sh version TAG                     prints version=… and image=…; fails unless manifest, chart and changelog agree
#   release.sh cyclonedx                       installs cargo-cyclonedx, which writes SBOMs
#   release.sh archive VERSION TARGET          release/: archive, SBOM and checksums of a static binary
#   release.sh login                           logs docker in to the registry of the forge
#   release.sh image IMAGE VERSION PLATFORM    builds and pushes an image with SBOM and provenance; digest/
#   release.sh index IMAGE VERSION             one tag for the images of digest/; prints digest=…
#   release.sh publish VERSION                 checksums of all archives, and the release with the changelog's section
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { printf 'release.sh: %s\n' "$*" >&2; exit 1; }

manifest_version() { sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1; }

version() {
    local version=${1#v}
    [ "$(manifest_version)" = "$version" ] || fail "Cargo.toml has version $(manifest_version), the tag is $1"
    grep -qx "appVersion: $version" deploy/helm/tollgate/Chart.yaml || fail "Chart.yaml: appVersion is not $version"
    grep -Eqx "## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}" CHANGELOG.md ||
        fail "CHANGELOG.md: expected a section ## [$version] with the date of the release"
    # `cargo binstall` downloads archives from the repository that the manifest names.
    local repository=${GITHUB_SERVER_URL:-}/${GITHUB_REPOSITORY:-}
    [ "$repository" = / ] || grep -qx "repository = \"$repository\"" Cargo.toml ||
        fail "Cargo.toml: expected repository = \"$repository\""
    echo "version=$version"
    # A registry accepts lower case only.
    local image=ghcr.io/${GITHUB_REPOSITORY:-tollgate}
    echo "image=${image,,}"
}

# Pinned by the hash of the crate, and its dependencies by the hashes of the Cargo.lock in it.
cyclonedx() {
    local crate=cargo-cyclonedx-0.5.9 directory
    local hash=5d162f67705f0f5038759d73bf546a083bf30e8677c2e944b416bca48d9d69a8
    directory=$(mktemp -d)
    curl --fail --silent --show-error --location --output "$directory/$crate.crate" \
        "https://static.crates.io/crates/cargo-cyclonedx/$crate.crate"
    sha256sum --check --quiet <<<"$hash  $directory/$crate.crate"
    tar --extract --gzip --directory "$directory" --file "$directory/$crate.crate"
    cargo install --locked --path "$directory/$crate"
    rm -r "$directory"
}

archive() {
    local version=$1 target=$2 name=tollgate-$1-$2 binary=target/$2/dist/tollgate
    [[ $("$binary" --version) == "tollgate $version"* ]] || fail "$binary --version prints $("$binary" --version)"
    # A static binary has no program interpreter.
    ! readelf --program-headers "$binary" | grep -q INTERP || fail "$binary is not static"
    "$binary" check config
    rm -rf "release/$name"
    mkdir -p "release/$name/man" "release/$name/completions"
    install --strip "$binary" "release/$name/tollgate"
    cp README.md LICENSE CHANGELOG.md "release/$name"
    cp -r docs config "release/$name"
    "$binary" man "release/$name/man"
    for shell in bash fish zsh; do
        "$binary" completions "$shell" > "release/$name/completions/tollgate.$shell"
    done
    # The archive is reproducible: it depends only on the commit.
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" \
        --create --directory release "$name" | gzip --no-name --best > "release/$name.tar.gz"
    rm -r "release/${name:?}"
    cargo cyclonedx --format json --target "$target" --override-filename "$name.cdx"
    mv "$name.cdx.json" release/
    (cd release && sha256sum "$name.tar.gz" "$name.cdx.json" > "$name.sha256")
}

login() { docker login ghcr.io --username "$GITHUB_ACTOR" --password-stdin <<<"$GH_TOKEN"; }

image() {
    local image=$1 version=$2 platform=$3 metadata
    metadata=$(mktemp)
    docker buildx create --use --driver docker-container
    docker buildx build --file deploy/Dockerfile --platform "$platform" \
        --build-arg VERSION="$version" --build-arg REVISION="$GITHUB_SHA" --build-arg COMMIT="${GITHUB_SHA:0:12}" \
        --build-arg SOURCE="$GITHUB_SERVER_URL/$GITHUB_REPOSITORY" \
        --sbom=true --provenance=mode=max --metadata-file "$metadata" \
        --output "type=image,name=$image,push-by-digest=true,name-canonical=true,push=true" .
    mkdir -p digest
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["containerimage.digest"])' "$metadata" \
        > "digest/${platform#*/}"
    docker run --rm --read-only --cap-drop ALL -v "$PWD/config:/rules:ro" --entrypoint /bin/tollgate \
        "$image@$(cat "digest/${platform#*/}")" check /rules
}

index() {
    local image=$1 version=$2 sources=() file
    for file in digest/*; do sources+=("$image@$(cat "$file")"); done
    [ "${#sources[@]}" = 2 ] || fail "expected digests of 2 architectures, got ${#sources[@]}"
    # `latest` is no pre-release such as 1.2.3-rc.1.
    local tags=(--tag "$image:$version")
    [[ $version == *-* ]] || tags+=(--tag "$image:latest")
    docker buildx imagetools create "${tags[@]}" "${sources[@]}" >&2
    echo "digest=$(docker buildx imagetools inspect "$image:$version" --format '{{.Manifest.Digest}}')"
}

publish() {
    local version=$1
    (cd release && cat ./*.sha256 | sort -k 2 > SHA256SUMS && rm ./*.sha256 && sha256sum --check SHA256SUMS)
    awk -v section="## [$version]" 'index($0, "## [") == 1 { shown = index($0, section) == 1; next } shown' CHANGELOG.md > release-notes.md
    local kind=()
    [[ $version != *-* ]] || kind=(--prerelease)
    gh release create "v$version" --verify-tag "${kind[@]}" --title "Tollgate $version" --notes-file release-notes.md release/*
}

command=${1:-}
case $command in
    version | cyclonedx | archive | login | image | index | publish) shift && "$command" "$@" ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
