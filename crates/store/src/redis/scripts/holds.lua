-- Holds. Each counter has a sorted set of its open holds by the millisecond at which they expire, with the request, the
-- index of the part, what is held, and what an unknown cost charges; the member `sum` has what
-- they hold together, negative, so that it comes before all. Each request has a hash of its holds, by the index of the
-- part; `c` marks one that was cancelled before it came. A third sorted set has the open requests by the millisecond of
-- their last expiry, and a fourth the holds that are remembered after they ended. All names begin with `base`, so that
-- they are in one slot.
local call, pack, unpacked = redis.call, struct.pack, struct.unpack
local max, min = math.max, math.min

-- A double has every integer up to it.
local MOST = 9007199254740992

-- What is held, what an unknown cost charges (-1 for what is held), the time to live, the millisecond at which the hold
-- expires or is forgotten, what it was charged (-1 while it is open), the rule, and the names of the currency, the counter
-- and its sorted set.
local HOLD = '<i8i8i8i8i8I8I2c0I4c0I4c0'

local time = call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
now = now - now % 1

local function whole(number)
  return string.format('%d', number)
end

local function parsed(text)
  local hold = {}
  hold.held, hold.unknown, hold.ttl, hold.at, hold.charged, hold.rule, hold.currency, hold.counter, hold.set =
    unpacked(HOLD, text)
  return hold
end

local function write(record, part, hold)
  call('HSET', record, part, pack(HOLD, hold.held, hold.unknown, hold.ttl, hold.at, hold.charged, hold.rule,
    #hold.currency, hold.currency, #hold.counter, hold.counter, #hold.set, hold.set))
end

-- What a hold charges that ends or expires.
local function unknown_cost(hold)
  return hold.unknown < 0 and hold.held or hold.unknown
end

local function member_of(id, part, hold)
  return id .. ':' .. part .. ':' .. whole(hold.held) .. ':' .. whole(unknown_cost(hold))
end

-- Adds to a counter, unless it has ended or there is none.
local function charge(counter, hits)
  local spent = counter ~= '' and tonumber(call('GET', counter) or '')
  if not spent then
    return
  end
  local after = min(max(spent + hits, 0), MOST)
  if after ~= spent then
    call('INCRBY', counter, whole(after - spent))
  end
end

-- An open hold no longer reserves anything.
local function release(set, member, held)
  if call('ZREM', set, member) == 1 then
    call('ZINCRBY', set, whole(held), 'sum')
  end
end

-- Charges what a hold costs that ended or expired, and remembers it for one more time to live, if there are not as many
-- already.
local function close(base, most, record, part, hold, from)
  local ended = base .. 'ended'
  hold.charged, hold.at = unknown_cost(hold), from + hold.ttl
  charge(hold.counter, hold.charged)
  call('ZREMRANGEBYSCORE', ended, '-inf', whole(now))
  if hold.at <= now or call('ZCARD', ended) >= most then
    call('HDEL', record, part)
    return
  end
  write(record, part, hold)
  call('ZADD', ended, whole(hold.at), record .. ':' .. part)
  if call('PTTL', ended) < hold.at - now then
    call('PEXPIRE', ended, whole(hold.at - now))
  end
end
