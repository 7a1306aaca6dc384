-- Holds the estimates of all parts of a request, or nothing: without an id it only looks. KEYS: `holds`, `due` and `ended`,
-- the counter of each part, and the set of each part, also for its counter if it has none. ARGV: the id, the most holds of a
-- counter, the most requests, and for each part what decides and what is recorded.
--
-- Returns for each part what is spent, what is held, the milliseconds until the first hold expires that is in its way if it
-- reads or does not fit, and 1 if it fits plus 2 if it holds plus 4 if there are too many plus 8 if more has expired than one
-- call sweeps; then what it found expired.
local records, due, id, most, most_in_all = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local parts = (#KEYS - 3) / 2

-- The limit, the estimate (-1 reads), and what it means for the request that it does not fit: it is refused (0), nothing, and
-- the part holds (1), nothing, as its candidate is exhausted (2), or all parts with the same number are one exhausted
-- candidate. Of that nothing holds; if all candidates with even numbers are exhausted, the request is refused. Then the time to live in milliseconds, the seconds after which the counter expires (0 without one),
-- and the member after the id.
local DECIDES, HOLDS, HOLDS_AT = '<i8i8i8', '<i8i8I2c0', 25

-- What has expired is not shown, and nothing is refused for it: as much is swept as the request needs, ten holds at a time.
-- A call ends after 200, so that others are not kept waiting.
local closed, rounds = '', 20
local found, open, spent, held, first, code, own, fit_of, is_refused, expired, exhausted
repeat
  local known = call('HMGET', records, id, unpack(KEYS, 4 + parts))
  open = call('ZCARD', due)
  found, spent, held, first, code, own, fit_of, is_refused, expired, exhausted = {}, {}, {}, {}, {}, {}, {}, known[1], nil, {}
  for i = 1, parts do
    local set, limit, estimate, fit = KEYS[3 + parts + i], unpacked(DECIDES, ARGV[2 * i + 2])
    local count, reads = call('ZCARD', set), estimate < 0
    -- One without a counter has its set in that place. A value of another type is an error.
    found[i] = KEYS[3 + i] ~= set and call('GET', KEYS[3 + i])
    spent[i], first[i] = tonumber(found[i] or 0), 0
    if not spent[i] then
      return redis.error_reply('WRONGTYPE the value of a counter is not a number')
    end
    held[i] = count > 0 and tonumber(known[i + 1] or 0) or 0
    for j = 1, i - 1 do
      -- Two descriptors may have one counter.
      if KEYS[3 + parts + j] == set and own[j] then
        count, held[i] = count + 1, held[i] + own[j]
      end
    end
    local is_full = not reads and (count >= most or open >= most_in_all)
    local has_room = spent[i] + held[i] + max(estimate, 0) <= limit and (reads or limit > 0)
    local fits = has_room and not is_full
    own[i] = fit ~= 2 and not reads and (fits or fit == 1 and not is_full) and estimate
    fit_of[i], is_refused = fit, is_refused or fit == 0 and not fits
    if fit > 2 then
      exhausted[fit] = exhausted[fit] or not fits
    end
    code[i] = (fits and 1 or 0) + (is_full and 4 or 0)
    if reads or not fits then
      -- In its way is what its counter holds, or any request of the slot.
      local way = has_room and is_full and count < most and due or set
      local expires = tonumber(call('ZRANGE', way, '0', '0', 'WITHSCORES')[2])
      if expires and expires > now then
        first[i] = expires - now
      elseif expires and (reads or spent[i] + estimate <= limit) then
        expired, code[i] = way, code[i] + 8
      end
    end
  end
  if expired and rounds > 0 then
    closed = closed .. (sweep(KEYS, most_in_all, expired, 10) or '')
  end
  rounds = rounds - 1
until not expired or rounds < 0

local are_all, any
for fit, is_exhausted in pairs(exhausted) do
  if fit % 2 == 0 then
    are_all = are_all ~= false and is_exhausted
  end
end
for i = 1, parts do
  own[i] = not exhausted[fit_of[i]] and own[i]
  any = any or own[i]
end
local reply = ''
local holds = any and id ~= '' and not is_refused and not are_all
local record, sums, earliest, longest = pack('<i8', now), {}, MOST, 0
for i = 1, parts do
  if holds and own[i] then
    local set, ttl, expiry, suffix = KEYS[3 + parts + i], unpacked(HOLDS, ARGV[2 * i + 2], HOLDS_AT)
    held[i], code[i], record = held[i] + own[i], code[i] + 2, record .. ARGV[2 * i + 3]
    earliest, longest = min(earliest, now + ttl), max(longest, ttl)
    call('ZADD', set, format('%d', now + ttl), id .. suffix)
    -- While a hold counts or is still to be charged, its set is there: the sweepers have a minute, as below.
    outlive(set, 2 * ttl + 60000)
    sums[#sums + 1], sums[#sums + 2] = set, format('%d', held[i])
    if not found[i] and expiry > 0 then
      -- What is charged later is for this window.
      call('SET', KEYS[3 + i], '0', 'EX', format('%d', expiry), 'NX')
    end
  end
  reply = reply .. pack('<i8i8i8i8', spent[i], held[i], first[i], code[i])
end
if holds then
  call('HSET', records, id, record, 'now', format('%d', now), unpack(sums))
  call('ZADD', due, format('%d', earliest), id)
  outlive(records, 2 * longest + 60000)
  outlive(due, 2 * longest + 60000)
end
return reply .. closed
