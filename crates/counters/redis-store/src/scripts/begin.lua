-- Counts keys by their limits. After ARGV[1], each argument has the letter of an algorithm, that of the key's unit, a time
-- in seconds, three numbers, and runs: hits (negative for a refund), and the number of callers with these hits.
--
-- A unit is one key, or the keys of a rule with several limits, which count all or nothing. Its letters: `a` one key; `x`
-- the same, if it may expire before its window ends; `f` the first key of a rule; `n` the next.
--
-- Returns the state of each key before, or an error in its place; for others than fixed windows also the time.
local call, pcall, pack, unpacked = redis.call, redis.pcall, struct.pack, struct.unpack
local max, min = math.max, math.min

-- The server's time, read at most once, so that all keys are counted at the same time.
local second, micros

-- A key with a foreign value.
local FOREIGN = { err = 'WRONGTYPE' }

-- A number in digits. Redis would format it as a float, which takes as long as a read.
local function whole(number)
  return string.format('%d', number)
end

-- By letter. Each takes the time and the numbers of an argument, and whether the key is alone. It returns `apply`, a
-- function of a state, hits and the number of callers with them: how many of the callers fit and, if their hits change the
-- state, the new one and the key's expiry in seconds if it must be set. If a state is a string, its length follows.
local algorithms = {}
