-- Asks every check, unless one of them would be over its limit: then only those that would be, and the others
-- look. What is given back is given back in either case. ARGV holds what is asked of each key, and then a byte for
-- each: 0 alone, 3 alone under a key that may live too short, 1 the first of a group and 2 the next; a group
-- is counted only if none of it is over. Returns of each check what tells of its key, and what became of it: 0
-- asked, 1 looked at, 2 refused; and the time.
local NO_NUMBER = { err = 'ERR value is not an integer or out of range' }
-- Beyond 2^62, which is over every limit, a double may be no integer of Redis.
local MOST = 4611686018427387904
local members = ARGV[#KEYS + 1]

-- Each tells of a key, and whether all was admitted, and keeps it unless it is a trial.
local judges = {}

function judges.c(key, asked, is_trial, member)
  local seconds, limit, hits = unpacked('<xI4I8xxxxxxxxxxxxxxxxi8', asked)
  local text = call('GET', key)
  if text and not string.find(text, '^-?%d+$') then
    return NO_NUMBER
  end
  local count = tonumber(text or '0')
  local after = math.max(count + hits, 0)
  if after == count or is_trial then
    return math.min(is_trial == 'look' and count or after, MOST), after <= limit
  elseif not text then
    call('SET', key, string.format('%.0f', after), 'EX', seconds)
  else
    -- Not a number of more digits than a double has.
    -- A counter that can hold no more says so, and is left as it is.
    local counted = redis.pcall('INCRBY', key, string.format('%.0f', after - count))
    after = type(counted) == 'number' and counted or after
    if member == '3' and call('TTL', key) < seconds then
      call('EXPIRE', key, seconds)
    end
  end
  return math.min(after, MOST), after <= limit
end

function judges.l(key, asked, is_trial)
  local of_log = asked_of_log(asked)
  if is_trial == 'look' then
    of_log.runs = { 0, 1 }
  end
  return ask_log(key, of_log, is_trial)
end

for letter, algorithm in pairs(algorithms) do
  judges[letter] = function(key, asked, is_trial)
    local old = call('GET', key)
    local state, seconds, admitted = algorithm(asked)(old)
    if state == false then
      return FOREIGN
    elseif state and not is_trial then
      keep(key, old, state, seconds)
    end
    return old, admitted
  end
end

local function judge(i, is_trial)
  return judges[ARGV[i]:sub(1, 1)](KEYS[i], ARGV[i], is_trial, members:sub(i, i))
end

local over, any_over = {}, false
for i = 1, #KEYS do
  local told, admitted = judge(i, 'trial')
  if type(told) == 'table' and told.err then
    return told
  end
  over[i] = not admitted
  any_over = any_over or over[i]
end
local all, first = {}, 1
while first <= #KEYS do
  local last, is_group, is_refused = first, members:sub(first, first) == '1', any_over
  while members:sub(last + 1, last + 1) == '2' do
    last = last + 1
  end
  if is_group and not any_over then
    -- A key may be there twice: it is tried anew.
    for i = first, last do
      local _, admitted = judge(i, 'trial')
      over[i] = not admitted
      is_refused = is_refused or over[i]
    end
  end
  for i = first, last do
    local takes = unpacked('<i8', ARGV[i], #ARGV[i] - 11) >= 0
    local became = is_refused and takes and (is_group and over[i] and 2 or not over[i] and 1) or 0
    -- What another algorithm refuses is not counted anyway, and tells when it would be admitted.
    local looks = became == 1 or became == 2 and ARGV[i]:sub(1, 1) == 'c'
    all[2 * i - 1], all[2 * i] = (judge(i, looks and 'look')), became
  end
  first = last + 1
end
all[#all + 1], all[#all + 2] = now[1], now[2]
return all
