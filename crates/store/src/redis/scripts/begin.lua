local call, pack, unpacked = redis.call, struct.pack, struct.unpack

-- The server's time, read once: all keys are counted at the same time.
local now = call('TIME')
local second, micros = tonumber(now[1]), tonumber(now[2])

-- A number in digits. Redis would format it as a float, which takes as long as a read.
local function whole(number)
  return string.format('%d', number)
end

-- An argument has a letter, the jitter of the key's expiry in seconds, three numbers, and runs: hits (negative for a
-- refund), and the number of callers with these hits.
local function runs_from(argument, at)
  return { unpacked('<' .. string.rep('i8I4', (#argument - at + 1) / 12), argument, at) }
end

-- The error for a key with a foreign value.
local FOREIGN = { err = 'WRONGTYPE' }
