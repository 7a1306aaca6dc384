//! What scripts can call: `redis`, `struct`, `cjson` and `math.random`, and Lua's own functions without those that Redis
//! removes. Other globals are errors.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use mlua::{BorrowedBytes, Error, Lua, MultiValue, Result, Table, Value};
use smallvec::SmallVec;

use super::{Raised, structs};
use crate::{
    commands::Command,
    resp::{Reply, Words, exact},
    state::{Sender, State},
};

/// The first state of the generator of `math.random`, which lasts as long as the server.
const SEED: u64 = 0x1234_abcd_330e;

/// Globals of Lua that Redis does not have.
const REMOVED: [&str; 6] = ["print", "dofile", "loadfile", "module", "require", "collectgarbage"];

pub(super) fn install(lua: &Lua, state: &Rc<RefCell<State>>) -> Result<()> {
    let globals = lua.globals();
    for name in REMOVED {
        globals.raw_remove(name)?;
    }
    globals.raw_set("redis", redis(lua, state)?)?;
    let structs = lua.create_table()?;
    structs.raw_set("pack", lua.create_function(structs::pack)?)?;
    structs.raw_set("unpack", lua.create_function(structs::unpack)?)?;
    globals.raw_set("struct", structs)?;
    let cjson = lua.create_table()?;
    cjson.raw_set("decode", lua.create_function(decode)?)?;
    globals.raw_set("cjson", cjson)?;
    let math: Table = globals.raw_get("math")?;
    let generator = Cell::new(SEED);
    math.raw_set(
        "random",
        lua.create_function(move |_, bounds: MultiValue| next_random(&generator, &bounds))?,
    )?;
    math.raw_remove("randomseed")?;
    let guard = lua.create_table()?;
    guard.raw_set(
        "__index",
        lua.create_function(|_, (_, name): (Value, Value)| {
            let name = name.to_string()?;
            Err::<(), _>(Error::runtime(format!(
                "Script attempted to access nonexistent global variable '{name}'"
            )))
        })?,
    )?;
    guard.raw_set(
        "__newindex",
        lua.create_function(|_, _: MultiValue| {
            Err::<(), _>(Error::runtime("Attempt to modify a readonly table"))
        })?,
    )?;
    globals.set_metatable(Some(guard))
}

fn redis(lua: &Lua, state: &Rc<RefCell<State>>) -> Result<Table> {
    let redis = lua.create_table()?;
    for (name, is_protected) in [("call", false), ("pcall", true)] {
        // The server owns Lua and the state.
        let state = Rc::downgrade(state);
        let call = lua.create_function(move |lua, words: MultiValue| {
            let state = state.upgrade().expect("the server runs this script");
            match run(&state, &words)? {
                Reply::Error(error) if !is_protected => Err(Error::external(Raised(error))),
                reply => value(lua, &reply),
            }
        })?;
        redis.raw_set(name, call)?;
    }
    for (name, field) in [("status_reply", "ok"), ("error_reply", "err")] {
        let reply = move |lua: &Lua, text: mlua::String| {
            let table = lua.create_table()?;
            let text = if field == "err" { lua.create_string(with_code(&text.as_bytes()))? } else { text };
            table.raw_set(field, text)?;
            Ok(table)
        };
        redis.raw_set(name, lua.create_function(reply)?)?;
    }
    redis.raw_set(
        "sha1hex",
        lua.create_function(|lua, text: mlua::String| {
            lua.create_string(super::Sha::of(&text.as_bytes()).as_bytes())
        })?,
    )?;
    Ok(redis)
}

/// The text of an error begins with its code: one of a single word has none.
fn with_code(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    if text.contains(&b' ') { text.to_vec() } else { [b"ERR ", text].concat() }
}

enum Word {
    Text(mlua::String),
    Number(String),
}

/// Runs the command of a script.
fn run(state: &RefCell<State>, words: &MultiValue) -> Result<Reply> {
    let mut owned = SmallVec::<[Word; 8]>::new();
    for word in words {
        owned.push(match word {
            Value::String(text) => Word::Text(text.clone()),
            Value::Integer(number) if number.unsigned_abs() < SEVENTEEN_DIGITS => {
                Word::Number(itoa::Buffer::new().format(*number).to_owned())
            }
            #[expect(clippy::cast_precision_loss, reason = "Lua's numbers are doubles")]
            Value::Integer(number) => Word::Number(exact(*number as f64)),
            Value::Number(number) => Word::Number(exact(*number)),
            _ => {
                let error = "ERR Lua redis lib command arguments must be strings or integers";
                return Ok(Reply::error(error));
            }
        });
    }
    let borrowed: SmallVec<[Option<BorrowedBytes<'_>>; 8]> = owned
        .iter()
        .map(|word| match word {
            Word::Text(text) => Some(text.as_bytes()),
            Word::Number(_) => None,
        })
        .collect();
    let words: Words<'_> = owned
        .iter()
        .zip(&borrowed)
        .map(|pair| match pair {
            (Word::Number(number), _) => number.as_bytes(),
            (Word::Text(_), Some(text)) => &**text,
            (Word::Text(_), None) => unreachable!("every text was borrowed"),
        })
        .collect();
    Ok(execute(&mut state.borrow_mut(), &words))
}

fn execute(state: &mut State, words: &[&[u8]]) -> Reply {
    let Some((name, arguments)) = words.split_first() else {
        return Reply::error("ERR Please specify at least one argument for this redis.call() call");
    };
    let Some(command) = Command::named(name) else {
        return Reply::error("ERR Unknown Redis command called from script");
    };
    if !command.accepts(words.len()) {
        return Reply::error("ERR Wrong number of args calling Redis command from script");
    }
    if !command.runs_in_scripts() {
        return Reply::error("ERR This Redis command is not allowed from script");
    }
    let sender = Sender::Script(state.script);
    if let Some(error) = state.refuses(command, arguments, sender) {
        return Reply::Error(error);
    }
    state.script.has_written |= command.writes();
    state.run(command, arguments).unwrap_or_else(Reply::Error)
}

/// `%.17g` has an exponent from this number on.
const SEVENTEEN_DIGITS: u64 = 100_000_000_000_000_000;

/// A reply as Lua sees it.
fn value(lua: &Lua, reply: &Reply) -> Result<Value> {
    let field = |name: &str, text: &[u8]| {
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set(name, lua.create_string(text)?)?;
        Ok::<_, Error>(Value::Table(table))
    };
    Ok(match reply {
        Reply::Status(status) => field("ok", status.as_bytes())?,
        Reply::OwnStatus(status) => field("ok", status)?,
        Reply::Error(error) => field("err", error.as_bytes())?,
        // A double, as all numbers of Lua 5.1.
        #[expect(clippy::cast_precision_loss, reason = "as Redis does")]
        Reply::Integer(number) => Value::Number(*number as f64),
        Reply::Bulk(text) => Value::String(lua.create_string(text)?),
        Reply::Nil => Value::Boolean(false),
        Reply::Array(all) => {
            let table = lua.create_table_with_capacity(all.len(), 0)?;
            for (one, index) in all.iter().zip(1..) {
                table.raw_set(index, value(lua, one)?)?;
            }
            Value::Table(table)
        }
        Reply::Encoded(_) => unreachable!("scripts do not subscribe"),
    })
}

/// The reply of a script that returns a value.
pub(super) fn reply(value: &Value) -> Result<Reply> {
    Ok(match value {
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Integer(*number),
        #[expect(clippy::cast_possible_truncation, reason = "as Redis does")]
        Value::Number(number) => Reply::Integer(*number as i64),
        Value::Boolean(true) => Reply::Integer(1),
        Value::Table(table) => list(table)?,
        _ => Reply::Nil,
    })
}

/// A table with `err` or `ok`, or a list that ends before its first nil.
fn list(table: &Table) -> Result<Reply> {
    let mut all = Vec::with_capacity(table.raw_len());
    if table.raw_len() == 0 {
        if let Value::String(error) = table.raw_get("err")? {
            let error = error.as_bytes();
            let error = error.strip_prefix(b"-").unwrap_or(&error);
            return Ok(Reply::Error(String::from_utf8_lossy(error).into_owned()));
        }
        if let Value::String(status) = table.raw_get("ok")? {
            return Ok(Reply::OwnStatus(status.as_bytes().to_vec()));
        }
    }
    for index in 1.. {
        match table.raw_get(index)? {
            Value::Nil => break,
            element => all.push(reply(&element)?),
        }
    }
    Ok(Reply::Array(all))
}

#[expect(clippy::needless_pass_by_value, reason = "the form that mlua calls")]
fn decode(lua: &Lua, text: mlua::String) -> Result<Value> {
    let json = serde_json::from_slice(&text.as_bytes());
    from_json(
        lua,
        &json.map_err(|error| Error::runtime(format!("Expected value but found invalid token: {error}")))?,
    )
}

fn from_json(lua: &Lua, json: &serde_json::Value) -> Result<Value> {
    use serde_json::Value as Json;
    Ok(match json {
        Json::Null => Value::NULL,
        Json::Bool(is_true) => Value::Boolean(*is_true),
        Json::Number(number) => Value::Number(number.as_f64().expect("every number of JSON is a double")),
        Json::String(text) => Value::String(lua.create_string(text)?),
        Json::Array(all) => {
            let table = lua.create_table_with_capacity(all.len(), 0)?;
            for (one, index) in all.iter().zip(1..) {
                table.raw_set(index, from_json(lua, one)?)?;
            }
            Value::Table(table)
        }
        Json::Object(all) => {
            let table = lua.create_table_with_capacity(0, all.len())?;
            for (name, one) in all {
                table.raw_set(lua.create_string(name)?, from_json(lua, one)?)?;
            }
            Value::Table(table)
        }
    })
}

/// `math.random` with the generator of Redis, that of POSIX' `lrand48`.
fn next_random(generator: &Cell<u64>, bounds: &MultiValue) -> Result<f64> {
    const MOST: u64 = 0x7fff_ffff;
    let next = (generator.get().wrapping_mul(0x5_deec_e66d) + 0xb) & 0xffff_ffff_ffff;
    generator.set(next);
    #[expect(clippy::cast_precision_loss, reason = "31 bits")]
    let part = ((next >> 17) % MOST) as f64 / MOST as f64;
    let bound = |index: usize| match bounds.get(index) {
        None => Ok(None),
        #[expect(clippy::cast_precision_loss, reason = "Lua's numbers are doubles")]
        Some(Value::Integer(number)) => Ok(Some(*number as f64)),
        Some(Value::Number(number)) => Ok(Some(number.trunc())),
        Some(other) => Err(Error::runtime(format!("number expected, got {}", other.type_name()))),
    };
    let (low, high) = match (bound(0)?, bound(1)?) {
        (None, _) => return Ok(part),
        (Some(high), None) => (1.0, high),
        (Some(low), Some(high)) => (low, high),
    };
    if low > high {
        return Err(Error::runtime("bad argument to 'random' (interval is empty)"));
    }
    Ok((part * (high - low + 1.0)).floor() + low)
}
