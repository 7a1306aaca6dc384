//! Defects of the scripts of holds: the simulated Redis runs another text.

use plants::{Plant, is_planted};
use simulated_redis::Server;

/// The text of a script, and what is in its place.
type Change = (&'static str, &'static str);

const CHANGES: [(Plant, &[Change]); 7] = [
    (Plant::SettledTwice, &[("        else\n          is_done = true\n        end\n", "        end\n")]),
    (
        Plant::LateInNewWindow,
        &[(
            "        local spent = after ~= before",
            "        if letter == 'l' then counter = (string.gsub(counter, '%d+$', function(start) \
             return format('%d', start + math.floor((now / 1000 - start) / 60) * 60) end)) end\n\
             local spent = after ~= before",
        )],
    ),
    (
        Plant::HoldRenewed,
        &[
            (
                "    call('ZADD', set, format('%d', now + ttl), id .. suffix)",
                "    for _, other in ipairs(call('ZRANGE', set, '0', '-1')) do \
                 call('ZADD', set, format('%d', now + ttl), other) end \
                 call('ZADD', set, format('%d', now + ttl), id .. suffix)",
            ),
            (
                "  call('ZADD', due, format('%d', earliest), id)",
                "  for _, other in ipairs(call('ZRANGE', due, '0', '-1')) do \
                 call('ZADD', due, format('%d', earliest), other) end \
                 call('ZADD', due, format('%d', earliest), id)",
            ),
        ],
    ),
    (Plant::ExpiredRefuses, &[("expired, code[i] = way, code[i] + 8", "expired = nil")]),
    (Plant::ClockFollowed, &[("if clock[1] and now < tonumber(clock[1]) then", "if false then")]),
    (Plant::RecordsShortened, &[("  if call('PTTL', key) < millis then", "  if true then")]),
    (
        Plant::OthersIgnored,
        &[("spent[i] + held[i] + max(estimate, 0) <= limit", "spent[i] + max(estimate, 0) <= limit")],
    ),
];

pub fn plant_in_scripts(server: &mut Server) {
    for (plant, changes) in CHANGES {
        if is_planted(plant) {
            for (from, to) in changes {
                server.change_scripts(from, to);
            }
        }
    }
}
