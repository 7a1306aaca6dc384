//! Lua scripts, by the rules of Redis: its libraries, its conversions between replies and values, its errors.
//!
//! A script is compiled once. Its commands run on the server's [`State`], which nothing else uses meanwhile.

mod library;
mod structs;

use std::{cell::RefCell, collections::BTreeSet, error::Error, fmt, rc::Rc};

use indexmap::IndexMap;
use mlua::{ChunkMode, Function, Lua, LuaOptions, StdLib, Table, Value};

use crate::{
    Refusal,
    commands::Outcome,
    resp::{Reply, integer},
    state::State,
};

/// The hash of a script in hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sha([u8; 40]);

pub(crate) struct Scripts {
    lua: Lua,
    globals: Table,
    /// Every script that was ever loaded.
    compiled: IndexMap<Sha, Function>,
    /// Those that the server has not lost since.
    known: BTreeSet<Sha>,
}

/// An error reply that a script did not catch.
#[derive(Debug)]
struct Raised(String);

impl Sha {
    pub(crate) fn of(source: &[u8]) -> Self {
        let digits = sha1_smol::Sha1::from(source).digest().to_string();
        Self(digits.as_bytes().try_into().expect("SHA-1 has 40 hexadecimal digits"))
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        Some(Self(text.to_ascii_lowercase().try_into().ok()?))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Scripts {
    pub(crate) fn new(state: &Rc<RefCell<State>>) -> Self {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new()).expect("Lua's own libraries load");
        library::install(&lua, state).expect("the libraries of Redis load");
        let globals = lua.globals();
        Self { lua, globals, compiled: IndexMap::new(), known: BTreeSet::new() }
    }

    pub(crate) fn knows(&self, sha: Sha) -> bool {
        self.known.contains(&sha)
    }

    /// As `SCRIPT FLUSH` and a restart do.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    pub(crate) fn load(&mut self, sha: Sha, source: &[u8]) -> Result<(), String> {
        if !self.compiled.contains_key(&sha) {
            let chunk = self.lua.load(source).set_name("@user_script").set_mode(ChunkMode::Text);
            let function = chunk.into_function();
            let function = function.map_err(|error| {
                format!("ERR Error compiling script (new function): {}", first_line(&error))
            })?;
            self.compiled.insert(sha, function);
        }
        self.known.insert(sha);
        Ok(())
    }

    /// Runs `EVAL`, whose first argument is the script itself, or `EVALSHA`, unless the server refuses scripts.
    pub(crate) fn run(&mut self, is_source: bool, arguments: &[&[u8]], refusal: Option<Refusal>) -> Outcome {
        let count = integer(arguments[1]).ok_or("ERR value is not an integer or out of range")?;
        let rest = &arguments[2..];
        let count = usize::try_from(count).map_err(|_| "ERR Number of keys can't be negative")?;
        let (keys, rest) =
            rest.split_at_checked(count).ok_or("ERR Number of keys can't be greater than number of args")?;
        let sha = if is_source {
            let sha = Sha::of(arguments[0]);
            self.load(sha, arguments[0])?;
            sha
        } else {
            let sha = Sha::parse(arguments[0]).filter(|sha| self.knows(*sha));
            sha.ok_or("NOSCRIPT No matching script. Please use EVAL.")?
        };
        if let Some(refusal) = refusal {
            return Err(refusal.text().to_owned());
        }
        let result = self.call(&self.compiled[&sha], keys, rest);
        result.map_err(|error| format!("{} script: {}", explain(&error), sha.0.escape_ascii()))
    }

    fn call(&self, script: &Function, keys: &[&[u8]], arguments: &[&[u8]]) -> mlua::Result<Reply> {
        self.globals.raw_set("KEYS", self.list(keys)?)?;
        self.globals.raw_set("ARGV", self.list(arguments)?)?;
        library::reply(&script.call::<Value>(())?)
    }

    fn list(&self, words: &[&[u8]]) -> mlua::Result<Table> {
        let list = self.lua.create_table_with_capacity(words.len(), 0)?;
        for (word, index) in words.iter().zip(1..) {
            list.raw_set(index, self.lua.create_string(word)?)?;
        }
        Ok(list)
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Raised {}

/// The error reply of a script that failed.
fn explain(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, .. } => explain(cause),
        mlua::Error::ExternalError(raised) if raised.is::<Raised>() => raised.to_string(),
        other => format!("ERR {}", first_line(other)),
    }
}

/// The message without Lua's traceback.
fn first_line(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::RuntimeError(text) | mlua::Error::SyntaxError { message: text, .. } => text.clone(),
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}
