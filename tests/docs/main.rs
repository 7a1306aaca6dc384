//! The documentation, compared with the program: tables, rules, commands, names and links.
//!
//! Two tables are made from the code. `TOLLGATE_WRITE_DOCS=1` updates them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rules::{CompileOptions, Compiled, SourceFile, compile};

use support::{
    clock::{self, Clock},
    markdown::{Block, blocks, links, slugs},
    ports::free_port,
    server::{BINARY, Server, Setup},
};

mod commands;
mod envoy;
mod openapi;
mod picture;
mod schema;

#[test]
fn the_settings_table_is_that_of_the_program() {
    holds_table("docs/reference/settings.md", "settings", &settings::markdown());
}

#[test]
fn the_table_of_memory_is_that_of_the_program() {
    holds_table("docs/reference/operating.md", "memory", &settings::memory::markdown());
}

#[test]
fn the_metrics_table_is_that_of_the_program() {
    let mut table = "| Metric | Kind | Labels | Meaning |\n|---|---|---|---|\n".to_owned();
    for metric in tollgate::app::documentation() {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let cells = [format!("`{}`", metric.name), metric.kind.name().to_owned(), labels.join(", ")];
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {} | {} |", cells.join(" | "), metric.help);
    }
    holds_table("docs/reference/metrics.md", "metrics", &table);
}

#[test]
fn the_table_of_commands_is_that_of_the_help() {
    let output = Command::new(BINARY).arg("--help").env("COLUMNS", "400").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let mut table = "| command | what it does |\n|---|---|\n".to_owned();
    for line in commands.lines().take_while(|line| line.starts_with("  ")) {
        let (name, about) = line.trim().split_once(' ').unwrap();
        if name != "help" {
            // Writing to a String cannot fail.
            let _ = writeln!(table, "| `tollgate {name}` | {} |", about.trim());
        }
    }
    holds_table("docs/reference/cli.md", "commands", &table);
}

#[test]
fn the_table_of_calls_is_that_of_the_admin_api() {
    let mut table = "| call | what it does |\n|---|---|\n".to_owned();
    for route in admin::ROUTES {
        let summary = route.summary.split_once(". ").map_or(route.summary, |(first, _)| first);
        let query: Vec<_> = route.parameters.iter().map(|parameter| format!("{}=", parameter.name)).collect();
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        let call = format!("{} {}{query}", route.method, route.path);
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| `{call}` | {}. |", summary.trim_end_matches('.'));
    }
    holds_table("docs/reference/admin.md", "calls", &table);
}

/// The folders of `crates/`, each above those that its crates may need.
const FOLDERS: [&str; 7] = ["ground", "limits", "records", "counters", "decision", "ports", "operations"];

/// The crates with their folders in order, from `cargo metadata`: a row for each, and none needs one of a later folder.
#[test]
fn the_crates_table_is_that_of_cargo() {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let name = |package: &serde_json::Value| package["name"].as_str().unwrap().to_owned();
    // Those of `crates/FOLDER/NAME`, each with the place of its folder.
    let folder = |package: &serde_json::Value| {
        let path = package["manifest_path"].as_str().unwrap().to_owned();
        let within = path.split_once("/crates/")?.1.split('/').next()?.to_owned();
        Some(FOLDERS.iter().position(|one| *one == within).unwrap_or_else(|| panic!("{path}: {FOLDERS:?}")))
    };
    let packages = metadata["packages"].as_array().unwrap().iter();
    let mut crates: Vec<_> =
        packages.filter_map(|package| Some((folder(package)?, name(package), package))).collect();
    crates.sort_by_key(|(folder, name, _)| (*folder, name.clone()));
    let folders: BTreeMap<_, _> = crates.iter().map(|(folder, name, _)| (name.clone(), *folder)).collect();
    let mut table = "| folder | crate | content | needs |\n|---|---|---|---|\n".to_owned();
    for (folder, own, package) in &crates {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let needs: BTreeSet<String> =
            dependencies.filter(|one| one["path"].is_string() && one["kind"].is_null()).map(name).collect();
        for needed in &needs {
            let of = folders[needed];
            assert!(of <= *folder, "`{own}` of {} needs `{needed}` of {}", FOLDERS[*folder], FOLDERS[of]);
        }
        // What is on the ground is needed everywhere.
        let shown: Vec<_> = needs
            .iter()
            .filter(|one| folders[*one] > 0 || *folder == 0)
            .map(|one| format!("`{one}`"))
            .collect();
        let description = package["description"].as_str().unwrap();
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {} | `{own}` | {description} | {} |", FOLDERS[*folder], shown.join(", "));
    }
    holds_table("ARCHITECTURE.md", "crates", &table);
}

/// Compares the text between `<!-- name -->` and `<!-- /name -->` of a page with `table`.
fn holds_table(page: &str, name: &str, table: &str) {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->\n"));
    let text = read(page);
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no {begin:?} in {page}"));
    let (written, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no {end:?} in {page}"));
    let wanted = format!("\n{table}\n");
    if written == wanted {
        return;
    }
    if env::var_os("TOLLGATE_WRITE_DOCS").is_some() {
        return fs::write(root().join(page), [before, &begin, &wanted, &end, after].concat()).unwrap();
    }
    let differing: BTreeSet<&str> = written
        .lines()
        .collect::<BTreeSet<_>>()
        .symmetric_difference(&wanted.lines().collect())
        .copied()
        .collect();
    panic!(
        "the table `{name}` of {page} is not what the program says; TOLLGATE_WRITE_DOCS=1 cargo test --test docs \
         rewrites it. Differing lines:\n{}",
        differing.into_iter().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn every_rules_file_shown_is_accepted_or_rejected_as_documented() {
    let mut seen = 0;
    for page in pages() {
        for block in rules_files(&page) {
            let compiled = compiled(&block);
            let reported: Vec<_> = compiled.diagnostics.iter().map(ToString::to_string).collect();
            let is_as_said = if block.is_refused() { compiled.rules.is_none() } else { reported.is_empty() };
            assert!(is_as_said, "{page}:{}:\n{}", block.line, reported.join("\n"));
            seen += 1;
        }
    }
    assert!(seen > 10, "only {seen} blocks are marked as yaml");
}

fn compiled(block: &Block) -> Compiled {
    let file = SourceFile { name: "shown.yaml".to_owned(), text: block.text.clone().into_bytes() };
    compile(&[file], CompileOptions::default())
}

#[test]
fn every_command_shown_prints_the_shown_output() {
    let _clock = Clock::ordinary().enter();
    let mut seen = 0;
    for page in pages() {
        let consoles: Vec<_> = blocks(&read(&page)).into_iter().filter(|block| block.is("console")).collect();
        if consoles.is_empty() {
            continue;
        }
        // Counters restart at the full minute; if one passes, the page is run again.
        let differences = loop {
            let begun = minute();
            let differences = play(&page, &consoles);
            if minute() == begun {
                break differences;
            }
        };
        assert!(differences.is_empty(), "{page}:\n{}", differences.join("\n"));
        seen += consoles.len();
    }
    assert!(seen > 5, "only {seen} blocks are marked as console");
}

/// Runs the commands of a page, in order, against a server with every rules file of the page and those of the project.
/// Returns the differences from the page.
fn play(page: &str, consoles: &[Block]) -> Vec<String> {
    let lesson = fs::read_to_string(root().join("config/lesson.yaml")).unwrap();
    let files = rules_files(page);
    let good = files.iter().filter(|block| !block.is_refused());
    let setup = good.fold(Setup::new().rules("lesson.yaml", &lesson), |setup, block| {
        setup.rules(&format!("line-{}.yaml", block.line), &block.text)
    });
    let admin = format!("127.0.0.1:{}", free_port());
    let server = setup.env("ADMIN_ADDR", &admin).start();
    let is_other = |block: &Block| ["jsonl", "csv"].iter().any(|language| block.is(language));
    let others = blocks(&read(page)).into_iter();
    let others = others.filter(|block| is_other(block) || block.is("yaml") && !block.is_rules_file());
    for block in files.iter().chain(&others.collect::<Vec<_>>()) {
        if let Some(path) = block.path() {
            let path = server.dir().join("shown").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, &block.text).unwrap();
        }
    }
    let steps =
        consoles.iter().flat_map(|block| block.steps().into_iter().map(move |step| (block.line, step)));
    let mut differences = Vec::new();
    // The ids of holds on the page, and those that the server drew instead.
    let mut ids: Vec<(String, String)> = Vec::new();
    for (line, (command, shown)) in steps {
        let drawn = |text: String| ids.iter().fold(text, |text, (page, server)| text.replace(page, server));
        let (command, shown) = (drawn(command), drawn(shown));
        let (said, code) = type_command(&server, &admin, &command);
        let new = hold(&shown).zip(hold(&said));
        let shown = new.as_ref().map_or(shown.clone(), |(page, server)| shown.replace(page, server));
        ids.extend(new);
        let fails = ["OVER_LIMIT", "error", "unknown domain"];
        let fails = fails.iter().any(|begin| shown.starts_with(begin))
            || shown.lines().next().is_some_and(|line| line.contains(": no rule matches: "))
            || shown.contains("would be newly refused")
            || shown.contains("\nerror: ");
        let expected = i32::from(fails);
        if without_times(&said) != without_times(&shown) || code != Some(expected) {
            differences.push(format!("block at line {line}: $ {command}\n{said}(exit code {code:?})"));
        }
    }
    differences
}

/// The output and the exit code of a command of a page. `request` queries the server, `check` and `explain` read the files
/// of the page, the others ask the admin API. Variables may precede the command.
fn type_command(server: &Server, admin: &str, command: &str) -> (String, Option<i32>) {
    let (variables, arguments) = command.split_once("tollgate ").expect("consoles show tollgate alone");
    let variables = variables.split_whitespace().filter_map(|word| word.split_once('='));
    let mut words = words(arguments);
    if words[0] == "request" {
        words.splice(1..1, ["--addr".to_owned(), format!("127.0.0.1:{}", server.ports.grpc)]);
    }
    let shown = server.dir().join("shown");
    fs::create_dir_all(&shown).unwrap();
    let output = Command::new(BINARY)
        .args(words)
        .env("ADMIN_ADDR", admin)
        .envs(variables)
        .current_dir(shown)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8(said).unwrap(), output.status.code())
}

/// The id of a hold in a response.
fn hold(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("\"hold\":\"")?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// The words of a command line, with single quotes.
fn words(arguments: &str) -> Vec<String> {
    let quoted = arguments.split('\'').enumerate();
    let words = quoted.flat_map(|(at, part)| match at % 2 {
        0 => part.split_whitespace().collect(),
        _ => vec![part],
    });
    words.map(str::to_owned).collect()
}

/// The text with an `N` for the seconds until a window ends, and without its start: both depend on the time.
fn without_times(text: &str) -> String {
    const BEFORE: [&str; 4] = ["resets in ", "Retry-After: ", "\"retry_after\": ", ";t="];
    let without_start = |line: &str| match line.rsplit_once('_') {
        Some((key, _)) if line.trim_start().starts_with("counter ") => key.to_owned(),
        _ => line.to_owned(),
    };
    let text = text.trim_end().lines().map(without_start).collect::<Vec<_>>().join("\n");
    BEFORE.iter().fold(text, |text, before| {
        let mut parts = text.split(before);
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            text + before + "N" + part.trim_start_matches(|character: char| character.is_ascii_digit())
        })
    })
}

fn minute() -> u64 {
    clock::now() / 60
}

#[test]
fn every_metric_named_exists() {
    // Of the Go service alone, as the page of differences says.
    let missing =
        ["ratelimit_go_", "ratelimit_localcache_overwriteCount", "ratelimit_localcache_averageAccessTime"];
    let known: BTreeSet<&str> = tollgate::app::documentation().iter().map(|metric| metric.name).collect();
    for page in pages() {
        let text = read(&page);
        let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let names = text
            .split(|character| !is_name(character))
            .filter(|word| word.starts_with("ratelimit_") || word.starts_with("tollgate_"))
            // The prefix of the gRPC server's statsd names.
            .filter(|word| *word != "ratelimit_server");
        for name in names {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let is_one = known.contains(name) || base.is_some_and(|base| known.contains(base));
            let begins_some = name.ends_with('_') && known.iter().any(|known| known.starts_with(name));
            let is_missing = page == "docs/reference/differences.md" && missing.contains(&name);
            assert!((is_one || begins_some) != is_missing, "{page}: {name}");
        }
    }
}

#[test]
fn every_alert_links_to_its_section_of_the_runbook() {
    let rules: serde_yaml::Value = serde_yaml::from_str(&read("deploy/prometheus/rules.yaml")).unwrap();
    let groups = rules["groups"].as_sequence().unwrap();
    let alerts: Vec<_> = groups
        .iter()
        .flat_map(|group| group["rules"].as_sequence().unwrap())
        .filter_map(|rule| Some((rule["alert"].as_str()?, rule["annotations"]["runbook_url"].as_str())))
        .collect();
    let sections = slugs(&read("docs/reference/runbook.md"));
    assert!(alerts.len() > 10, "{alerts:?}");
    for (alert, url) in alerts {
        let section = alert.to_lowercase();
        assert_eq!(url, Some(format!("docs/reference/runbook.md#{section}").as_str()), "{alert}");
        assert!(sections.contains(section.as_str()), "docs/reference/runbook.md has no section {alert}");
    }
}

#[test]
fn the_readme_is_short() {
    let words = read("README.md").split_whitespace().count();
    assert!(words < 1200, "{words} words");
}

#[test]
fn guides_are_short() {
    for page in pages().into_iter().filter(|page| page.starts_with("docs/guide/")) {
        let words = read(&page).split_whitespace().count();
        assert!(words <= 1200, "{page} has {words} words");
    }
}

#[test]
fn the_way_in_and_the_contents_of_the_site_have_every_page() {
    for index in ["docs/README.md", "docs/SUMMARY.md"] {
        let links: BTreeSet<_> = links(&read(index)).into_iter().collect();
        for page in pages() {
            let Some(path) = page.strip_prefix("docs/").filter(|path| path.contains('/')) else { continue };
            assert!(links.contains(path), "{index} has no link to {path}");
            let title = read(&page).lines().next().unwrap_or_default().trim_start_matches("# ").to_owned();
            let is_named =
                index != "docs/SUMMARY.md" || read(index).contains(&format!("- [{title}]({path})\n"));
            assert!(is_named, "{index}: {path} is called {title}");
        }
    }
}

#[test]
fn every_link_has_a_target() {
    for page in pages() {
        let directory = Path::new(&page).parent().unwrap().to_owned();
        for link in links(&read(&page)) {
            // Pages of the forge, such as releases, are two levels above a file.
            if link.starts_with("https://")
                || link.starts_with("../../releases")
                || link.starts_with("../../actions")
            {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { PathBuf::from(&page) } else { directory.join(path) };
            assert!(root().join(&target).exists(), "{page} links to {link}");
            let has_anchor = || slugs(&read(target.to_str().unwrap())).contains(anchor);
            assert!(anchor.is_empty() || has_anchor(), "{page} links to {link}, which has no such heading");
        }
    }
}

/// The pages, by their path from the root.
fn pages() -> Vec<String> {
    let of = |directory: &str| {
        let entries = fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path());
        let pages = entries.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
        let name = |path: PathBuf| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        pages.map(name).collect::<BTreeSet<_>>()
    };
    let shelves = ["docs", "docs/guide", "docs/reference", "docs/dev"];
    let others =
        ["", "deploy", "deploy/agent-router", "deploy/envoy-gateway", "deploy/istio", "deploy/helm/tollgate"];
    others.into_iter().chain(shelves).flat_map(of).collect()
}

/// The rules files of a page. Other YAML has a word after `yaml`.
fn rules_files(page: &str) -> Vec<Block> {
    blocks(&read(page)).into_iter().filter(Block::is_rules_file).collect()
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
