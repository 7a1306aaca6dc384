//! The Markdown of the project's pages: fenced blocks, links, headings.

use std::collections::BTreeSet;

/// A fenced block.
pub struct Block {
    /// The line of its fence, from 1.
    pub line: usize,
    /// The info string: the language, and the purpose of the block.
    info: Vec<String>,
    pub text: String,
}

impl Block {
    pub fn is(&self, language: &str) -> bool {
        self.info.first().is_some_and(|first| first == language)
    }

    /// `yaml`, `yaml path/of/a.yaml` or `yaml refused path/of/a.yaml`.
    pub fn is_rules_file(&self) -> bool {
        let is_named = self.info.len() == 2 && self.path().is_some();
        self.is("yaml") && (self.info.len() == 1 || self.is_refused() || is_named)
    }

    pub fn is_refused(&self) -> bool {
        self.info.iter().any(|word| word == "refused")
    }

    /// The word after the language.
    pub fn purpose(&self) -> Option<&str> {
        self.info.get(1).map(String::as_str)
    }

    /// The file name of the block.
    pub fn path(&self) -> Option<&str> {
        self.info.iter().map(String::as_str).find(|word| word.contains('/'))
    }

    /// The commands of a console with their output.
    pub fn steps(&self) -> Vec<(String, String)> {
        let mut steps: Vec<(String, String)> = Vec::new();
        for line in self.text.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push((command.to_owned(), String::new()));
            } else {
                let (_, printed) = steps.last_mut().expect("a console begins with a command");
                *printed += line;
                *printed += "\n";
            }
        }
        steps
    }
}

/// The fenced blocks of a page.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (at, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(info), None) => {
                let info = info.split_whitespace().map(str::to_owned).collect();
                open = Some(Block { line: at + 1, info, text: String::new() });
            }
            (None, Some(block)) => {
                block.text += line;
                block.text += "\n";
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

/// The targets of the links of a page.
pub fn links(page: &str) -> Vec<String> {
    let prose = prose(page);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The inline code of a page, which may span lines.
pub fn spans(page: &str) -> Vec<String> {
    prose(page).split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")).collect()
}

/// The anchors of the headings, as forges make them.
pub fn slugs(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let kept = |character: &char| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_');
    headings
        .map(|heading| heading.trim_start_matches('#').trim().to_lowercase())
        .map(|heading| heading.chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

/// The page without its fenced blocks.
fn prose(page: &str) -> String {
    let mut is_fenced = false;
    let outside = page.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    });
    outside.collect::<Vec<_>>().join("\n")
}
