-- Holds the estimates of all parts of a request, or nothing. KEYS: the request's record, then the counter and the sorted set
-- of each part. ARGV: `base`, the id, the most holds of a counter, and for each part the limit, the estimate, what an
-- unknown cost charges, the time to live in milliseconds, the seconds after which the counter expires (0 without a
-- counter, whose key is then that of the set), the rule and the currency.
--
-- Returns 0, or the number of the part that does not fit, negative if it has too many holds; then for each part what is
-- spent, what is held, and the millisecond at which its first hold expires.
local base, id, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local parts, reply, more, longest = {}, { 0 }, {}, 0

-- Charges a few expired holds of a counter. A hold whose record is lost charges what it held.
local function sweep(counter, set)
  for _, member in ipairs(call('ZRANGEBYSCORE', set, '(0', whole(now), 'LIMIT', '0', '10')) do
    local request, part, held = string.match(member, '^(.*):(%d+):(%d+)$')
    local record = base .. 'hold:' .. request
    local hold = read(record, part)
    release(set, member, tonumber(held))
    if hold and hold.charged < 0 then
      close(record, part, hold, hold.at)
    elseif not hold then
      charge(counter, tonumber(held))
    end
  end
end

for i = 1, #ARGV - 3 do
  local part = { counter = KEYS[2 * i], set = KEYS[2 * i + 1] }
  part.limit, part.estimate, part.unknown, part.ttl, part.expiry, part.rule, part.currency =
    unpacked('<i8i8i8i8i8I8I2c0', ARGV[i + 3])
  if part.expiry == 0 then
    part.counter = ''
  end
  sweep(part.counter, part.set)
  parts[i] = part
end
for i, part in ipairs(parts) do
  local spent = part.counter ~= '' and tonumber(call('GET', part.counter) or '0') or 0
  local sum = -tonumber(call('ZSCORE', part.set, 'sum') or '0')
  local known = more[part.set] or { held = 0, holds = 0 }
  part.held = min(part.estimate, part.limit)
  part.at = now + part.ttl
  if reply[1] == 0 then
    if part.limit == 0 or spent + sum + known.held + part.held > part.limit then
      reply[1] = i
    elseif call('ZCARD', part.set) + known.holds > most then
      reply[1] = -i
    end
  end
  more[part.set] = { held = known.held + part.held, holds = known.holds + 1 }
  local first = call('ZRANGEBYSCORE', part.set, '(0', '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = spent, sum, tonumber(first[2] or '0')
  longest = max(longest, part.ttl)
end
if reply[1] ~= 0 then
  return reply
end
for i, part in ipairs(parts) do
  call('ZADD', part.set, whole(part.at), id .. ':' .. i .. ':' .. whole(part.held))
  call('ZINCRBY', part.set, whole(-part.held), 'sum')
  part.charged = -1
  write(KEYS[1], i, part)
  if part.counter ~= '' and call('EXISTS', part.counter) == 0 then
    -- What is charged later is for this window.
    call('SET', part.counter, '0', 'EX', whole(part.expiry))
  end
  local expiry = part.counter ~= '' and part.expiry * 1000 or part.ttl * 2
  if call('PTTL', part.set) < expiry then
    call('PEXPIRE', part.set, whole(expiry))
  end
  reply[3 * i] = reply[3 * i] + part.held
end
call('PEXPIRE', KEYS[1], whole(longest * 2))
return reply
