//! Defects of the scripts of holds: the simulated Redis runs another text.

use plants::{Plant, is_planted};
use simulated_redis::Server;

/// The text of a script, and what is in its place.
type Change = (&'static str, &'static str);

const CHANGES: [(Plant, &[Change]); 4] = [
    (
        Plant::SettledTwice,
        &[(
            "    call('HDEL', record, part)\n    charge(hold.counter, cost)\n",
            "    charge(hold.counter, cost)\n",
        )],
    ),
    (
        Plant::LateInNewWindow,
        &[(
            "charge(hold.counter, cost - hold.charged)",
            "charge((string.gsub(hold.counter, '%d+$', function(start) \
             return whole(start + math.floor((now / 1000 - start) / 60) * 60) end)), cost - hold.charged)",
        )],
    ),
    (
        Plant::HoldRenewed,
        &[
            (
                "    call('ZADD', part.set, whole(part.at), member_of(id, i, part))",
                "    for _, other in ipairs(call('ZRANGEBYSCORE', part.set, '(0', '+inf')) do \
                 call('ZADD', part.set, whole(part.at), other) end \
                 call('ZADD', part.set, whole(part.at), member_of(id, i, part))",
            ),
            (
                "  call('ZADD', all, whole(now + longest), id)",
                "  for _, other in ipairs(call('ZRANGEBYSCORE', all, '-inf', '+inf')) do \
                 call('ZADD', all, whole(now + longest), other) end call('ZADD', all, whole(now + longest), id)",
            ),
        ],
    ),
    (
        Plant::OthersIgnored,
        &[("part.spent + part.sum + part.held <= part.limit", "part.spent + part.held <= part.limit")],
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
