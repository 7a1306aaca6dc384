local call, pack, unpacked = redis.call, struct.pack, struct.unpack

-- The server's own time, read once: all that is asked here is asked at the same moment.
local now = call('TIME')
local second, micros = tonumber(now[1]), tonumber(now[2])

-- A number in digits. Of itself Redis would write it as one that may be broken, which takes as long as a read.
local function whole(number)
  return string.format('%d', number)
end

-- What is asked of a limit: a letter, the seconds that its key may live longer than needed, three numbers,
-- and runs: hits (negative when given back), and how many ask for so many.
local function runs_from(asked, at)
  return { unpacked('<' .. string.rep('i8I4', (#asked - at + 1) / 12), asked, at) }
end

-- What is under a key is kept by nobody here.
local FOREIGN = { err = 'WRONGTYPE' }
